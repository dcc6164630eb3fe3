"""Django's application, in which requests to the API skip the middleware of pages."""

import os
from typing import Any

import django
from django.conf import settings
from django.core.handlers.exception import convert_exception_to_response
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest
from django.utils.module_loading import import_string

from broker_project.core.api.problems import API

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")


class WebApplication(WSGIHandler):
    """Runs the middleware: for the API only `API_MIDDLEWARE`, since the others cost a twelfth of its CPU time."""

    def load_middleware(self, is_async: bool = False) -> None:
        """Build both chains of middleware."""
        super().load_middleware(is_async)
        pages: Any = self._middleware_chain  # type: ignore[has-type]  # as Django declares it
        api: Any = convert_exception_to_response(self._get_response)  # type: ignore[attr-defined]
        for name in reversed(settings.API_MIDDLEWARE):
            api = convert_exception_to_response(import_string(name)(api))

        def chain(request: HttpRequest) -> Any:
            return (api if request.path.startswith(API) else pages)(request)

        self._middleware_chain = chain


django.setup(set_prefix=False)
application = WebApplication()
