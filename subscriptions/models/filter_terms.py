"""The column of what a filter can be looked up by."""

from django.db import models

from subscriptions.filter_terms import term_of


class FilterTermField(models.TextField):  # type: ignore[type-arg]  # no brackets at run time
    """What the record's filter can be looked up by, made of it whenever this is saved.

    A term that does not belong to the filter, because something else has written that, is dropped by a trigger.
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> str:  # noqa: ARG002 - Django's signature
        """Return the term of the filter."""
        term = term_of(model_instance.filter)  # type: ignore[attr-defined]
        setattr(model_instance, self.attname, term)
        return term
