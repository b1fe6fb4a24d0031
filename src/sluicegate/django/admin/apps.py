"""The application for INSTALLED_APPS. `migrate` makes its permissions."""

from django.apps import AppConfig


class SluicegateAdminConfig(AppConfig):
    """The page of the overrides in the admin."""

    name = "sluicegate.django.admin"
    label = "sluicegate_admin"  # a part of the names of the permissions
    verbose_name = "sluicegate"
    default_auto_field = "django.db.models.BigAutoField"  # the model has no table, but without this there is a warning
