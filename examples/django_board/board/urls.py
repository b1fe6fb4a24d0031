"""The routes of the board."""

from django.contrib.auth.views import LoginView
from django.urls import path

from board import views

urlpatterns = [
    path("replies", views.Replies.as_view(), name="replies"),
    path("export", views.export, name="export"),
    path("profile", views.profile, name="profile"),
    path("health", views.health, name="health"),
    path("accounts/login/", LoginView.as_view(template_name="login.html", next_page="/profile"), name="login"),
]
