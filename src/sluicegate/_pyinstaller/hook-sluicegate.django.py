"""The module that Django looks for by name where INSTALLED_APPS names `sluicegate.django`."""

hiddenimports = ["sluicegate.django.apps"]
