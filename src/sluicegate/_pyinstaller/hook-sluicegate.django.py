"""Hook for `sluicegate.django`: the `apps` module, which Django imports by name for an entry of INSTALLED_APPS."""

hiddenimports = ["sluicegate.django.apps"]
