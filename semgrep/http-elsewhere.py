import http.client
import socket
import urllib.request
from urllib.request import urlopen

import pycurl
import requests
from requests import post as send

# ruleid: http-elsewhere
requests.get(endpoint)
# ruleid: http-elsewhere
requests.post(endpoint, json=event, timeout=5)
# ruleid: http-elsewhere
send(endpoint, data=body)
# ruleid: http-elsewhere
requests.Session()
# ruleid: http-elsewhere
urllib.request.urlopen(endpoint)
# ruleid: http-elsewhere
urlopen(endpoint)
# ruleid: http-elsewhere
http.client.HTTPSConnection(host)
# ruleid: http-elsewhere
pycurl.Curl()
# ruleid: http-elsewhere
socket.create_connection((host, 443))

# ok: http-elsewhere
request = requests.PreparedRequest()
# ok: http-elsewhere
answer = requests.Response()
# ok: http-elsewhere
try:
    self._client.send(request)
except requests.RequestException as failure:
    raise
# ok: http-elsewhere
addresses = socket.getaddrinfo(host, 443)
# ok: http-elsewhere
urllib.parse.urlsplit(endpoint)
