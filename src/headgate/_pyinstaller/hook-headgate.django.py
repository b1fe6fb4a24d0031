"""The module that Django looks for by name where INSTALLED_APPS names `headgate.django`."""

hiddenimports = ["headgate.django.apps"]
