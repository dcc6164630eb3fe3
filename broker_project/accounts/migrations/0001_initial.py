import django.contrib.admin.models
import django.db.models.deletion
import broker_project.core.encryption
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("axes", "0010_accessattemptexpiration"),
        ("admin", "0003_logentry_add_action_flag_choices"),
    ]

    operations = [
        migrations.CreateModel(
            name="SecondFactor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="second_factor",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("seed", broker_project.core.encryption.EncryptedValue(purpose="second factor")),
                ("confirmed_at", models.DateTimeField(null=True)),
                ("last_step", models.BigIntegerField(default=0)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("locked_until", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="RecoveryCode",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.BinaryField(max_length=32)),
                (
                    "second_factor",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="recovery_codes",
                        to="accounts.secondfactor",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("second_factor", "digest"), name="recovery_code_once")]
            },
        ),
        migrations.CreateModel(
            name="InstalledRole",
            fields=[
                (
                    "group",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        serialize=False,
                        to="auth.group",
                    ),
                )
            ],
        ),
        migrations.CreateModel(
            name="FailedLogin",
            fields=[],
            options={"verbose_name": "failed login", "proxy": True, "indexes": [], "constraints": []},
            bases=("axes.accessattempt",),
        ),
        migrations.CreateModel(
            name="Change",
            fields=[],
            options={
                "verbose_name": "change",
                "verbose_name_plural": "history",
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("admin.logentry",),
            managers=[("objects", django.contrib.admin.models.LogEntryManager())],
        ),
    ]
