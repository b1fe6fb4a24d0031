"""The rules of an application: what requests are limited, for which identities, how much, and when it is enforced."""
