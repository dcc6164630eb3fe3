from django.utils import html, safestring
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

# ruleid: unescaped-html
cell = mark_safe(f"<b>{name}</b>")
# ruleid: unescaped-html
cell = mark_safe("<b>")
# ruleid: unescaped-html
cell = safestring.mark_safe(text)
# ruleid: unescaped-html
cell = SafeString(text)
# ruleid: unescaped-html
cell = format_html(f"<b>{name}</b>")
# ruleid: unescaped-html
cell = html.format_html("<b>" + name + "</b>")

# ok: unescaped-html
cell = format_html("<b>{}</b>", name)
# ok: unescaped-html
cell = format_html_join(", ", "<i>{}</i>", names)
# ok: unescaped-html
cell = escape(name)
# ok: unescaped-html
page = render_to_string("delivery/lines.html", context)
# ok: unescaped-html
def bar(text: str) -> SafeString: ...
