import hmac

# ruleid: compared-secret
if signature == expected:
    accept()
# ruleid: compared-secret
if given != subscription.signing_secret:
    refuse()
# ruleid: compared-secret
if hashlib.sha256(token).hexdigest() == stored:
    accept()
# ruleid: compared-secret
if digest(token) != key.digest:
    refuse()
# ruleid: compared-secret
if request.POST["password"] == user.password:
    accept()

# ok: compared-secret
if hmac.compare_digest(signature, expected):
    accept()
# ok: compared-secret
if authenticate(request, password=given) == user:
    accept()
# ok: compared-secret
if not token:
    refuse()
# ok: compared-secret
if signature is None:
    refuse()
# ok: compared-secret
if token == "":
    refuse()
# ok: compared-secret
if delivery.status == expected:
    accept()
# ok: compared-secret
keys = ApiKey.objects.filter(token_hash=hashed)
# ok: compared-secret
if key.kind == kind:
    accept()
