"""The rules of an application: which requests are limited, for whom, how much, and when a rule is enforced."""
