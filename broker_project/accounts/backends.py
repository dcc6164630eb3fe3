"""Django's own way to find a person, who comes with the second factor in one question."""

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User


class People(ModelBackend):
    """Finds people by name and password, and the one of a session."""

    def get_user(self, user_id: int) -> User | None:
        """Return who has this id and may log in."""
        user = User.objects.select_related("second_factor").filter(pk=user_id).first()
        return user if user is not None and self.user_can_authenticate(user) else None
