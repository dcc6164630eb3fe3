"""The pages of the portal, below `/portal/`."""

from django.urls import path

from broker_project.portal import views

app_name = "portal"
urlpatterns = [
    path("open/<str:link>", views.open_portal, name="open"),
    path("theme.css", views.theme, name="theme"),
    path("", views.overview, name="overview"),
    path("subscriptions/new", views.new_subscription, name="new-subscription"),
    path("subscriptions/<int:id>", views.subscription, name="subscriptions"),
    path("subscriptions/<int:id>/filter", views.filter_lab, name="filter"),
    path("messages/<int:id>", views.message, name="messages"),
    path("deliveries", views.deliveries, name="delivery-list"),
    path("deliveries/<int:id>", views.delivery, name="deliveries"),
    path("replays", views.replays, name="replays"),
    path("<slug:records>/<int:id>/<slug:operation>", views.operate, name="operate"),
    path("leave", views.leave, name="leave"),
]
