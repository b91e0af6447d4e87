"""Limits of HTTP requests in real applications of each framework, on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from typing import Any
from unittest import mock

import django
import django.conf
import flask
from django.core.asgi import get_asgi_application
from django.http import Http404, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response, WebSocket
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.testing import create_test_client
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

import redis_ratelimit
import redis_ratelimit.asyncio
import redis_ratelimit.django
import redis_ratelimit.fastapi
import redis_ratelimit.flask
from redis_ratelimit import AllReply, Busy, Held, Info, Policy, Rate, Reply, TopKey, Window, headers, semaphore
from redis_ratelimit.asgi import RateLimitMiddleware, client_address

from .fixtures import as_list, make

PORT = int(os.environ["RATELIMIT_PORT"])
RATE = Rate.per("2/h")
SITE = Window.per("100/h")

plain = make("redis", port=PORT)


def limiter_now(**options: Any) -> redis_ratelimit.Limiter:
    return redis_ratelimit.Limiter(make("redis", port=PORT), deadline=30, **options)


def limiter_soon(**options: Any) -> redis_ratelimit.asyncio.Limiter:
    return redis_ratelimit.asyncio.Limiter(make("redis", ".asyncio", port=PORT), deadline=30, **options)


def fixed(answer: Any, make_method: Any = mock.Mock) -> Any:
    """Returns a limiter whose calls return or raise this. mock.AsyncMock makes one for asyncio."""
    method = make_method(side_effect=[answer])
    return mock.Mock(spec=["throttle", "window"], throttle=method, window=method)


AWAY = Reply(1, 0, 0, None, 0, reachable=False)


def names(value: str) -> list[str]:
    return [name for name, _ in as_list(value)]


class OnAServer(unittest.TestCase):
    def setUp(self) -> None:
        plain.flushall()

    def check_denied(self, status: int, fields: Any, body: bytes, violated: list[str]) -> None:
        fields = {name.lower(): value for name, value in dict(fields).items()}
        self.assertEqual((status, fields["content-type"]), (429, "application/problem+json"))
        problem = json.loads(body)
        self.assertTrue(problem["type"].endswith("#quota-exceeded"))
        self.assertEqual((problem["status"], problem["violated-policies"]), (429, violated))
        self.assertTrue(0 < int(fields["retry-after"]) <= 3600)
        self.assertEqual(fields["x-ratelimit-remaining"], "0")
        self.assertEqual(names(fields["ratelimit"]), names(fields["ratelimit-policy"]))

    def check_unavailable(self, status: int, fields: Any, body: bytes) -> None:
        fields = {name.lower(): value for name, value in dict(fields).items()}
        self.assertEqual((status, fields["content-type"]), (503, "application/problem+json"))
        self.assertTrue(json.loads(body)["type"].endswith("#temporary-reduced-capacity"))


class OfAFramework:
    """The tests of views whose limit is RATE for each user, in each framework."""

    #: The names of limits that all requests have.
    site: list[str] = []

    def get(self, path: str, user: str | None = None) -> tuple[int, Any, bytes]:
        """Returns the status, the headers and the body of a response."""
        raise NotImplementedError

    def undecided(self, answer: Any) -> tuple[int, Any, bytes]:
        """Returns the response of a view whose limiter returns or raises this."""
        raise NotImplementedError

    def test_a_view_has_its_limit(self: Any) -> None:
        for remaining in "1", "0":
            status, fields, body = self.get("/search", "a")
            self.assertEqual((status, fields["x-ratelimit-remaining"]), (200, remaining))
            self.assertIn(b"found", body)
            self.assertEqual(names(fields["ratelimit-policy"]), [*self.site, "search"])
        status, fields, body = self.get("/search", "a")
        self.check_denied(status, fields, body, ["search"])
        self.assertEqual(names(fields["ratelimit"]), [*self.site, "search"])
        self.assertEqual(self.get("/search", "b")[0], 200)
        self.assertEqual(names(self.get("/search")[1].get("ratelimit", "")), self.site)

    def test_errors_and_other_views_have_the_headers_too(self: Any) -> None:
        for url, expected in ("/missing", (404, "1")), ("/other", (200, "0")), ("/other", (429, "0")):
            status, fields, _ = self.get(url, "a")
            self.assertEqual((status, fields["x-ratelimit-remaining"]), expected)

    def test_the_status_is_503_if_nobody_can_decide(self: Any) -> None:
        for answer in AWAY, Busy("busy"):
            self.check_unavailable(*self.undecided(answer))


class WithFastapi(OfAFramework, OnAServer):
    def get(self, path: str, user: str | None = None) -> tuple[int, Any, bytes]:
        app = self.app()
        redis_ratelimit.fastapi.setup(app)
        with TestClient(app) as client:
            answer = client.get(path, headers={} if user is None else {"x-user": user})
        self.assertLessEqual(len(answer.headers.get_list("ratelimit")), 1)
        return answer.status_code, answer.headers, answer.content

    def undecided(self, answer: Any) -> tuple[int, Any, bytes]:
        app = FastAPI()
        redis_ratelimit.fastapi.setup(app)
        of = redis_ratelimit.fastapi.RateLimit
        limit = of(fixed(answer, mock.AsyncMock), "@free", kind="throttle", key=lambda _: "k")

        @app.get("/", dependencies=[Depends(limit)])
        def hello() -> None:
            self.fail("let through")

        with TestClient(app) as client:
            found = client.get("/")
        return found.status_code, found.headers, found.content

    def app(self, **options: Any) -> FastAPI:
        limiter = limiter_soon(**options)
        app = FastAPI()

        async def by_user(request: Any) -> str | None:
            user = request.headers.get("x-user")
            return None if user is None else f"search:{user}"

        search = redis_ratelimit.fastapi.RateLimit(limiter, RATE, key=by_user, name="search")

        @app.get("/search", dependencies=[Depends(search)])
        async def searched() -> str:
            return "found"

        @app.get("/other", dependencies=[Depends(search)])
        async def other() -> Response:
            return Response("made by hand")

        @app.get("/missing", dependencies=[Depends(search)])
        async def missing() -> None:
            raise HTTPException(404)

        @app.websocket("/ws")
        async def ws(websocket: WebSocket, _: None = Depends(search)) -> None:
            await websocket.accept()
            await websocket.send_text("hello")
            await websocket.close()

        api = APIRouter(
            prefix="/api",
            dependencies=[Depends(redis_ratelimit.fastapi.RateLimit(limiter, SITE, key=lambda _: "site", name="site"))],
        )

        @api.get("/search", dependencies=[Depends(search)])
        def both() -> str:
            return "both"

        app.include_router(api)
        return app

    def test_without_setup_a_denial_has_its_status_and_headers(self) -> None:
        with TestClient(self.app()) as client:
            answers = [client.get("/search", headers={"x-user": "a"}) for _ in range(3)]
            self.assertEqual([answer.status_code for answer in answers], [200, 200, 429])
            self.assertEqual([answer.headers["x-ratelimit-remaining"] for answer in answers], ["1", "0", "0"])
            self.assertIn("retry-after", answers[2].headers)

    def test_a_middleware_a_router_and_a_route_end_in_one_set_of_headers(self) -> None:
        app = self.app()
        redis_ratelimit.fastapi.setup(app)
        limiter = limiter_soon()

        async def check(scope: Any) -> Any:
            return await limiter.window(f"all:{client_address(scope)}", SITE)

        app.add_middleware(RateLimitMiddleware, check=check, limits=SITE, names="site")
        with TestClient(app) as client:
            answer = client.get("/api/search", headers={"x-user": "a"})
            self.assertEqual(answer.status_code, 200)
            for name in "ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining":
                self.assertEqual(len(answer.headers.get_list(name)), 1, name)
            self.assertEqual(names(answer.headers["ratelimit-policy"]), ["site", "site-2", "search"])
            self.assertEqual((answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]), ("2", "1"))
            client.get("/api/search", headers={"x-user": "a"})
            answer = client.get("/api/search", headers={"x-user": "a"})
            self.check_denied(answer.status_code, answer.headers, answer.content, ["search"])
            self.assertEqual(names(answer.headers["ratelimit-policy"]), ["site", "site-2", "search"])
            self.assertEqual(answer.headers["x-ratelimit-limit"], "2")

    def test_a_websocket_route_is_closed(self) -> None:
        app = self.app()
        with TestClient(app) as client:
            for _ in range(2):
                with client.websocket_connect("/ws", headers={"x-user": "a"}) as websocket:
                    self.assertEqual(websocket.receive_text(), "hello")
            with self.assertRaises(WebSocketDisconnect) as closed:
                with client.websocket_connect("/ws", headers={"x-user": "a"}):
                    self.fail("let through")
            self.assertEqual(closed.exception.code, 1008)

    def test_wrong_limits_are_refused(self) -> None:
        limiter = limiter_soon()
        of = redis_ratelimit.fastapi.RateLimit
        self.assertRaisesRegex(TypeError, "one of redis_ratelimit.asyncio", of, limiter_now(), RATE, key=str)
        self.assertRaisesRegex(ValueError, "kind must be .* with the policy '@free'", of, limiter, "@free", key=str)
        self.assertRaisesRegex(
            ValueError, r"Rate.per\('5/min'\) or Window.per\('5/min'\)", of, limiter, "5/min", key=str
        )
        self.assertRaisesRegex(ValueError, "must not be a semaphore", of, limiter, semaphore(3), key=str)
        self.assertRaisesRegex(TypeError, "key must be a function", of, limiter, RATE, key="k")
        self.assertRaisesRegex(
            ValueError, "asked by throttle, not by window", of, limiter, RATE, key=str, kind="window"
        )
        self.assertRaisesRegex(ValueError, "not 'acquire'", of, limiter, "@free", key=str, kind="acquire")
        self.assertRaisesRegex(
            TypeError, "limiter must be one of redis_ratelimit, not object$", of, object(), RATE, key=str
        )
        self.assertRaisesRegex(ValueError, "version must be one of 10", of, limiter, RATE, key=str, version=3)


class WithTheMiddleware(OnAServer):
    def app(self, *answer: Any, **options: Any) -> FastAPI:
        """An application whose limiter returns or raises what is given, or else asks the server."""
        app = FastAPI()
        limiter = fixed(answer[0], mock.AsyncMock) if answer else limiter_soon()

        async def check(scope: Any) -> Any:
            self.assertNotEqual(scope["type"], "lifespan")
            return await limiter.throttle(f"web:{client_address(scope)}", RATE)

        app.add_middleware(RateLimitMiddleware, **{"check": check, "limits": RATE, "names": "web", **options})

        @app.websocket("/ws")
        async def ws(websocket: WebSocket) -> None:
            await websocket.accept(headers=[(b"x-own", b"1")])
            await websocket.close()

        @app.get("/hello")
        async def hello() -> str:
            return "hello"

        @app.get("/by-hand")
        async def by_hand() -> Response:
            return Response("", headers=headers(Reply(0, 9, 0, None, 5000), Window(9, 5), "web"))

        return app

    def test_each_response_has_headers_and_a_denial_is_429(self) -> None:
        with TestClient(self.app(), client=("192.0.2.7", 5)) as client:
            first, _, denied = (client.get("/hello") for _ in range(3))
        self.assertEqual((first.status_code, first.json()), (200, "hello"))
        self.assertEqual(first.headers["ratelimit-policy"], '"web";q=2;w=3600')
        self.assertRegex(first.headers["ratelimit"], '^"web";r=1;t=1[78][0-9]{2}$')
        self.check_denied(denied.status_code, denied.headers, denied.content, ["web"])
        self.assertTrue(plain.exists("web:192.0.2.7"))

    def test_what_a_reply_does_to_a_request(self) -> None:
        async def sorry(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 420, "headers": []})
            await send({"type": "http.response.body", "body": b"sorry"})

        denied, allowed = Reply(1, 5, 0, 1500, 2000), Reply(0, 0, 0, None, 0, reachable=False)
        for reply, options, status, header in (
            (denied, {"denied": sorry}, 420, "retry-after"),
            (allowed, {}, 200, None),
            (None, {}, 200, None),
            (AWAY, {}, 503, None),
            (Busy("busy"), {}, 503, None),
            (Busy("busy"), {"denied": sorry}, 420, None),
        ):
            with self.subTest(reply=reply, options=options), TestClient(self.app(reply, **options)) as client:
                answer = client.get("/hello")
                self.assertEqual(answer.status_code, status)
                found = {"ratelimit", "retry-after", "x-ratelimit-limit"} & set(answer.headers)
                self.assertEqual(bool(found), header is not None, found)
                if status == 503:
                    self.check_unavailable(status, answer.headers, answer.content)

    def test_websocket_connections_are_counted_and_have_headers(self) -> None:
        with TestClient(self.app(pk=client_address), client=("192.0.2.7", 5)) as client:
            with client.websocket_connect("/ws") as websocket:
                told = {name.decode(): value.decode() for name, value in websocket.extra_headers or []}
            self.assertEqual(told["x-own"], "1")
            self.assertEqual(told["x-ratelimit-remaining"], "1")
            self.assertEqual(told["ratelimit-policy"], '"web";q=2;w=3600;pk=:MTkyLjAuMi43:')
            client.get("/none")
            with self.assertRaises(WebSocketDenialResponse) as denied:
                with client.websocket_connect("/ws"):
                    self.fail("let through")
            answer = denied.exception
            self.check_denied(answer.status_code, answer.headers, answer.content, ["web"])

    def test_a_server_that_cannot_answer_a_websocket_closes_it(self) -> None:
        for reply, code in (Reply(1, 5, 0, 1500, 2000), 1008), (AWAY, 1013), (Busy("busy"), 1013):
            sent: list[Any] = []
            received = [{"type": "websocket.connect"}]

            async def receive() -> Any:
                return received.pop(0)

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "websocket", "path": "/ws", "client": ("192.0.2.7", 5), "headers": []}
            asyncio.run(self.app(reply)(scope, receive, send))
            self.assertEqual([(each["type"], each["code"]) for each in sent], [("websocket.close", code)])

    def test_headers_set_by_a_route_are_kept(self) -> None:
        with TestClient(self.app()) as client:
            answer = client.get("/by-hand")
            self.assertEqual(answer.headers["ratelimit-policy"], '"web";q=2;w=3600, "web-2";q=9;w=5')
            self.assertEqual(len(answer.headers.get_list("x-ratelimit-limit")), 1)
            self.assertEqual(answer.headers["x-ratelimit-limit"], "9")


class WithFlask(OfAFramework, OnAServer):
    def get(self, path: str, user: str | None = None) -> tuple[int, Any, bytes]:
        return self.answer(self.app(limiter_now()), path, user)

    def undecided(self, answer: Any) -> tuple[int, Any, bytes]:
        return self.answer(self.app(fixed(answer), "@free", kind="throttle"), "/search", "a")

    def answer(self, app: flask.Flask, path: str, user: str | None) -> tuple[int, Any, bytes]:
        answer = app.test_client().get(path, headers={} if user is None else {"x-user": user})
        return answer.status_code, answer.headers, answer.data

    def app(self, limiter: Any, limit: Any = RATE, **options: Any) -> flask.Flask:
        app = flask.Flask("tests")
        of = redis_ratelimit.flask.RateLimit

        def by_user() -> str | None:
            user = flask.request.headers.get("x-user")
            return None if user is None else f"search:{user}"

        @app.get("/search")
        @of(limiter, limit, key=by_user, name="search", **options)
        def search() -> str:
            """Searches."""
            return "found"

        self.assertEqual((search.__name__, search.__doc__), ("search", "Searches."))

        @app.get("/missing")
        @of(limiter, limit, key=by_user, name="search", **options)
        def missing() -> str:
            flask.abort(404)

        @app.get("/other")
        @of(limiter, limit, key=by_user, name="search", **options)
        async def soon() -> str:
            return "soon"

        return app

    def test_a_limit_before_every_view_and_one_of_the_view_end_in_one_set_of_headers(self) -> None:
        limiter = limiter_now()
        app = self.app(limiter)
        site = redis_ratelimit.flask.RateLimit(limiter, SITE, key=lambda: "site", name="site", pk=lambda: b"all")
        app.before_request(site.check)
        client = app.test_client()
        answer = client.get("/search", headers={"x-user": "a"})
        self.assertEqual(len(answer.headers.getlist("ratelimit")), 1)
        self.assertEqual(names(answer.headers["ratelimit-policy"]), ["site", "search"])
        self.assertEqual(answer.headers["x-ratelimit-limit"], "2")
        self.assertIn("pk=:YWxs:", answer.headers["ratelimit"])
        client.get("/search", headers={"x-user": "a"})
        answer = client.get("/search", headers={"x-user": "a"})
        self.check_denied(answer.status_code, answer.headers, answer.data, ["search"])
        self.assertEqual(names(answer.headers["ratelimit"]), ["site", "search"])
        # Each request has its own.
        self.assertEqual(names(client.get("/search").headers["ratelimit"]), ["site"])

    def test_a_limiter_for_asyncio_is_refused(self) -> None:
        with self.assertRaisesRegex(TypeError, "must be a redis_ratelimit.Limiter, not one for asyncio"):
            redis_ratelimit.flask.RateLimit(limiter_soon(), RATE, key=lambda: "k")


def by_user(request: Any) -> str | None:
    user = request.headers.get("x-user")
    return None if user is None else f"search:{user}"


site_limit = redis_ratelimit.django.RateLimit(limiter_now(), SITE, key=lambda _: "site", name="site")
django.conf.settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, MIDDLEWARE=[f"{__name__}.site_limit"], SECRET_KEY="tests", DATABASES={}
)
django.setup()
of_django = redis_ratelimit.django.RateLimit


@of_django(limiter_now(), RATE, key=by_user, name="search")
def search(request: Any) -> HttpResponse:
    if request.path == "/missing":
        raise Http404
    return HttpResponse("found")


@method_decorator(of_django(limiter_now(), RATE, key=by_user, name="search"), name="dispatch")
class Search(View):  # type: ignore[misc]
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse("found by a class")


soon_limiter = limiter_soon()


@of_django(soon_limiter, RATE, key=by_user, name="search")
async def search_soon(request: Any) -> HttpResponse:
    return HttpResponse("found soon")


urlpatterns = [
    path("search", search),
    path("missing", search),
    path("other", Search.as_view()),
    path("soon", search_soon),
]


class WithDjango(OfAFramework, OnAServer):
    site = ["site"]

    def get(self, path: str, user: str | None = None) -> tuple[int, Any, bytes]:
        answer = Client().get(path, headers={} if user is None else {"x-user": user})
        return answer.status_code, answer.headers, answer.content

    def undecided(self, answer: Any) -> tuple[int, Any, bytes]:
        view: Any = of_django(fixed(answer), "@free", kind="throttle", key=lambda _: "k")(self.fail)
        found = view(RequestFactory().get("/"))
        return found.status_code, found.headers, found.content

    def test_the_headers_of_the_middleware_are_those_of_a_page_that_is_missing_too(self) -> None:
        self.assertEqual(names(self.get("/nowhere")[1]["ratelimit"]), ["site"])

    def test_a_view_that_is_a_coroutine_function_has_its_limit(self) -> None:
        async def run() -> list[Any]:
            client = AsyncClient()
            found = [await client.get("/soon", headers={"x-user": "a"}) for _ in range(3)]
            await soon_limiter.aclose()
            return found

        answers = asyncio.run(run())
        self.assertEqual([answer.status_code for answer in answers], [200, 200, 429])
        self.check_denied(429, answers[2].headers, answers[2].content, ["search"])
        self.assertIsNotNone(get_asgi_application())

    def test_a_limiter_of_the_wrong_kind_is_refused(self) -> None:
        async def view(request: Any) -> None: ...

        with self.assertRaisesRegex(TypeError, "of a view with async def must be one of redis_ratelimit.asyncio"):
            of_django(limiter_now(), RATE, key=str)(view)
        with self.assertRaisesRegex(TypeError, "must be a redis_ratelimit.Limiter, as the view is no coroutine"):
            of_django(limiter_soon(), RATE, key=str)(print)


class WithLitestar(unittest.TestCase):
    def test_the_reply_of_a_limiter_can_be_injected(self) -> None:
        reply = Reply(0, 5, 4, None, 1000, id=b"\xff")
        of_all = AllReply(**{**vars(reply), "clause": 1, "answers": (reply,)})
        answers = {
            Reply: reply,
            AllReply: of_all,
            Info: Info("bucket", full_in_ms=7),
            list[Held]: [Held(b"\xff", 1, 1000), Held("job", 2, 500)],
            list[TopKey]: [TopKey("k", 0, 3, 1)],
            list[Policy]: [Policy("free", "WINDOW 5 1d", 3, 2, 1)],
        }
        injected: Any = NamedDependency
        given: list[Any] = []

        def note(answer: Any) -> None:
            given.append(answer)

        for kind, answer in answers.items():
            note.__annotations__["answer"] = injected[kind]
            provided = {"answer": Provide(lambda: answer, sync_to_thread=False)}
            handler = get("/", dependencies=provided, sync_to_thread=False)(note)
            with create_test_client(handler, logging_config=None) as client:
                self.assertEqual(client.get("/").status_code, 200, kind)
        self.assertEqual(given, list(answers.values()))


class Addresses(unittest.TestCase):
    def test_the_address_of_a_request_is_found_in_each_framework(self) -> None:
        peer, fields = "10.0.0.1", ["192.0.2.66", "192.0.2.67, 2001:db8:1:2::1"]
        sent = [(b"X-Forwarded-For", field.encode()) for field in fields]
        scope = {"type": "http", "client": (peer, 5), "headers": sent}
        environ = {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": ",".join(fields)}
        unix = {"REMOTE_ADDR": ""}
        of_flask = redis_ratelimit.flask.client_address
        app = flask.Flask("addresses")

        def in_flask(environ: Any, **options: Any) -> str:
            with app.test_request_context(environ_overrides=environ):
                return of_flask(**options)

        def in_django(environ: Any, **options: Any) -> str:
            return redis_ratelimit.django.client_address(RequestFactory().get("/", **environ), **options)

        def in_fastapi(scope: Any, **options: Any) -> str:
            return redis_ratelimit.fastapi.client_address(HTTPConnection(scope), **options)

        cases = (client_address, scope, {"type": "http"}), (in_fastapi, scope, {"type": "http", "headers": []})
        for find, request, nobody in *cases, (in_flask, environ, unix), (in_django, environ, unix):
            with self.subTest(find=find):
                self.assertEqual(find(request), peer)
                self.assertEqual(find(request, proxies=1), "2001:db8:1:2::/64")
                self.assertEqual(find(request, proxies=1, ipv6_prefix=48), "2001:db8:1::/48")
                self.assertEqual(find(request, proxies=2), "192.0.2.67")
                self.assertEqual(find(nobody), "")
