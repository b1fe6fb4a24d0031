"""The application for INSTALLED_APPS: it registers the system checks. The limits do not need it."""

from django.apps import AppConfig


class SluicegateConfig(AppConfig):
    """sluicegate as an installed application. Importing its package registers the checks."""

    name = "sluicegate.django"
    label = "sluicegate"  # the default is the last part of the name, "django", which misleads
    verbose_name = "sluicegate"
