"""The application that INSTALLED_APPS may name: it brings the system checks, and nothing that limiting needs."""

from django.apps import AppConfig


class SluicegateConfig(AppConfig):
    """sluicegate among the installed applications. Its checks are registered when its package is imported."""

    name = "sluicegate.django"
    label = "sluicegate"  # the last part of the name, "django", would be misleading
    verbose_name = "sluicegate"
