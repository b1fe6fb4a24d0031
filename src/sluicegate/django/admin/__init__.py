"""The overrides in Django's admin: add "sluicegate.django.admin" to INSTALLED_APPS.

This module imports nothing: for a project with "sluicegate.django" the admin imports it too, as that application's own.
"""
