"""The rules of an application: the requests that are limited, for which identities, how much, and when a rule is
enforced.
"""
