"""Addresses of the pages of the second factor."""

from django.contrib import admin
from django.urls import path

from broker_project.accounts import views

app_name = "accounts"

urlpatterns = [
    path("", admin.site.admin_view(views.second_factor), name="second-factor"),
    path("begin/", admin.site.admin_view(views.begin), name="begin"),
    path("confirm/", admin.site.admin_view(views.confirm), name="confirm"),
    path("code/", admin.site.admin_view(views.code), name="code"),
    path("recovery-codes/", admin.site.admin_view(views.renew_recovery_codes), name="recovery-codes"),
    path("remove/", admin.site.admin_view(views.remove), name="remove"),
]
