"""Django's own users and groups, in the admin's theme."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User

from subscriptions.admin.theme import AdminPasswordChangeForm, ModelAdmin, UserChangeForm, UserCreationForm

admin.site.unregister([User, Group])


@admin.register(User)
class ThemedUserAdmin(UserAdmin, ModelAdmin):  # type: ignore[type-arg]
    """Who may use the admin."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class ThemedGroupAdmin(GroupAdmin, ModelAdmin):
    """What groups of them may do."""
