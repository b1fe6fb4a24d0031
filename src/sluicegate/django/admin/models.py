"""A model without a table: Django makes permissions for models only."""

from django.db import models


class Override(models.Model):
    """The overrides are in the store. This class has their permissions."""

    class Meta:
        managed = False
        default_permissions = ("view", "change")
