"""The board's pages."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt, ensure_csrf_cookie

from sluicegate.django import exempt, limit

replies: list[str] = []


@method_decorator(csrf_exempt, name="dispatch")
class Replies(View):
    """Anyone may read; a user may reply 5 times a minute."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Only the default limits apply."""
        return JsonResponse(replies, safe=False)

    @method_decorator(limit("5/minute"))
    def post(self, request: HttpRequest) -> HttpResponse:
        """Five a minute for each user, or for each address of clients that are not signed in."""
        replies.append(f"{request.user.get_username() or 'anonymous'} was here")
        return JsonResponse({"replies": len(replies)}, status=201)


@limit("2/minute; 10/hour", key="ip", scope="export")
async def export(request: HttpRequest) -> HttpResponse:
    """An expensive page with two limits, both per address."""
    return HttpResponse("\n".join(replies), content_type="text/plain")


@login_required
@limit("10/minute")
def profile(request: HttpRequest) -> HttpResponse:
    """For signed-in users."""
    return HttpResponse(request.user.get_username())


@ensure_csrf_cookie
@exempt
def health(request: HttpRequest) -> HttpResponse:
    """No limit."""
    return HttpResponse("ok")
