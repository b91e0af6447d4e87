"""Limits of HTTP requests in real applications of each framework, on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import django
import django.conf
import flask
from django.core.asgi import get_asgi_application
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response, WebSocket
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.testing import create_test_client
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

import redis_ratelimit
import redis_ratelimit.asgi
import redis_ratelimit.asyncio
import redis_ratelimit.django
import redis_ratelimit.fastapi
import redis_ratelimit.flask
from redis_ratelimit import (
    AllReply,
    Busy,
    Clause,
    Denied,
    Held,
    Info,
    Policy,
    Rate,
    Reply,
    TopKey,
    Window,
    add_reply,
    semaphore,
)
from redis_ratelimit.asgi import RateLimitMiddleware, client_address

from .fixtures import as_list, make
from .servers import until

PORT = int(os.environ["RATELIMIT_PORT"])
RATE = Rate.per("2/h")
SITE = Window.per("100/h")
UNITS = Window.per("4/h")
#: What a route asks by itself, and the reply.
OWN = Reply(0, 1, 0, None, 1000), Window.per("1/h"), "own"

plain = make("redis", port=PORT)


def limiter_now(**options: Any) -> redis_ratelimit.Limiter:
    return redis_ratelimit.Limiter(make("redis", port=PORT), deadline=30, **options)


def limiter_soon(**options: Any) -> redis_ratelimit.asyncio.Limiter:
    return redis_ratelimit.asyncio.Limiter(make("redis", ".asyncio", port=PORT), deadline=30, **options)


def fixed(answer: Any, make_method: Any = mock.Mock) -> Any:
    """Returns a limiter whose calls return or raise this. mock.AsyncMock makes one for asyncio."""
    method = make_method(side_effect=[answer])
    return mock.Mock(spec=["throttle", "window"], throttle=method, window=method)


DENIED = Reply(1, 5, 0, 1500, 2000)
#: The denial of a limiter that decides while Redis does not answer, and the reply if nobody does.
FALLBACK = Reply(1, 5, 0, 1500, 2000, reachable=False)
AWAY = Reply(1, 0, 0, None, 0, reachable=False)


def names(value: str) -> list[str]:
    return [name for name, _ in as_list(value)]


def limits_of(plan: str | None) -> Any:
    """Returns the limits of a request."""
    if plan == "one":
        return UNITS
    if plan == "place":
        return semaphore(1)
    if plan != "several":
        return None
    places = Clause.acquire("{job}:places", semaphore(1), name="places")
    return [places, Clause.acquire("{job}:units", UNITS, 2, name="units"), Clause.window("{job}:site", SITE)]


def held() -> str:
    """Returns how many places are held."""
    return str(sum(len(plain.execute_command("RL.HELD", key)) for key in ("job", "{job}:places")))


def raised(path: str) -> None:
    """Raises what the view at a path raises."""
    raise Busy("busy") if path.endswith("busy") else Denied(DENIED, [Clause.window("k", SITE, name="own")])


def work(plan: str | None) -> str:
    """A view that fails if its request asks for it."""
    if plan == "fail":
        raise ZeroDivisionError
    return f"held {held()}"


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

    def get(self, path: str, user: str | None = None, plan: str | None = None) -> tuple[int, Any, bytes]:
        """Returns the status, the headers and the body of a response."""
        raise NotImplementedError

    def answered(self, answer: Any) -> tuple[int, Any, bytes]:
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

    def test_a_denial_is_429_whoever_decided_and_503_if_nobody_did(self: Any) -> None:
        status, fields, body = self.answered(FALLBACK)
        self.check_denied(status, fields, body, ["free"])
        self.assertEqual(fields["retry-after"], "2")
        for answer, wait in (AWAY, None), (Busy("busy"), "1"):
            status, fields, body = self.answered(answer)
            self.check_unavailable(status, fields, body)
            self.assertEqual({name.lower(): value for name, value in dict(fields).items()}.get("retry-after"), wait)

    def test_a_view_adds_its_own_reply_to_the_headers(self: Any) -> None:
        for user, policies in (None, ["own"]), ("a", ["search", "own"]):
            _, fields, _ = self.get("/own", user)
            self.assertEqual(names(fields["ratelimit-policy"]), [*self.site, *policies])
            self.assertEqual((fields["x-ratelimit-limit"], fields["x-ratelimit-remaining"]), ("1", "0"))

    def test_what_a_view_raises_as_denied_or_busy_is_answered(self: Any) -> None:
        for place, policies in ("/", ["search"]), ("/free-", []):
            with self.subTest(place=place):
                plain.flushall()
                status, fields, body = self.get(f"{place}denied", "a")
                self.check_denied(status, fields, body, ["own"])
                self.assertEqual(names(fields["ratelimit-policy"]), [*self.site, *policies, "own"])
                status, fields, body = self.get(f"{place}busy", "a")
                self.check_unavailable(status, fields, body)
                self.assertEqual(fields["retry-after"], "1")

    def test_each_request_has_limits_of_its_own_and_holds_what_they_reserve(self: Any) -> None:
        for plan, policies, body in (
            (None, [], b"held 0"),
            ("one", ["job"], b"held 0"),
            ("place", ["job"], b"held 1"),
            ("several", ["places", "units", "limit-3"], b"held 1"),
        ):
            plain.flushall()
            for url in "/job", "/stream":
                with self.subTest(plan=plan, url=url):
                    status, fields, found = self.get(url, plan=plan)
                    self.assertEqual((status, found), (200, body))
                    self.assertEqual(names(fields.get("ratelimit-policy", "")), [*self.site, *policies])
                    until(lambda: held() == "0", "the end of the request")
        # Each request that ended well has counted its units. None is left for a third.
        self.assertEqual(limiter_now().window_ro("{job}:units", UNITS).remaining, 0)
        self.check_denied(*self.get("/job", plan="several"), ["units"])
        # The errors of a request release what it reserved.
        plain.flushall()
        for plan in "fail", "fail", "fail":
            self.assertEqual(self.get("/job", plan=plan)[0], 500)
        self.assertEqual(limiter_now().window_ro("{job}:units", UNITS).remaining, 4)


def plan_in(request: Any) -> str | None:
    plan: str | None = request.headers.get("x-plan")
    return plan


def limits_in(request: Any) -> Any:
    plan = plan_in(request)
    return limits_of("several" if plan == "fail" else plan)


def sent(user: str | None, plan: str | None) -> dict[str, str]:
    return {name: value for name, value in (("x-user", user), ("x-plan", plan)) if value is not None}


def add_routes(app: FastAPI, search: Any = (), job: Any = ()) -> None:
    """Adds the views of the tests, with the dependencies that limit them."""

    @app.get("/search", dependencies=search)
    async def searched() -> str:
        return "found"

    @app.get("/other", dependencies=search)
    async def other() -> Response:
        return Response("made by hand")

    @app.get("/missing", dependencies=search)
    async def missing() -> None:
        raise HTTPException(404)

    @app.get("/own", dependencies=search)
    async def own(request: Request) -> Response:
        add_reply(request, *OWN)
        # What a route sets itself is replaced.
        return Response("own", headers={"x-ratelimit-limit": "7", "ratelimit": '"mine";r=7'})

    @app.get("/denied", dependencies=search)
    @app.get("/busy", dependencies=search)
    @app.get("/free-denied")
    @app.get("/free-busy")
    def failing(request: Request) -> None:
        raised(request.url.path)

    @app.get("/job", dependencies=job)
    def working(request: Request) -> Response:
        return Response(work(plan_in(request)))

    @app.get("/stream", dependencies=job)
    def streaming() -> StreamingResponse:
        return StreamingResponse(work(each) for each in [None])


class WithFastapi(OfAFramework, OnAServer):
    def get(self, path: str, user: str | None = None, plan: str | None = None) -> tuple[int, Any, bytes]:
        app = self.app()
        redis_ratelimit.fastapi.setup(app)
        with TestClient(app, raise_server_exceptions=False) as client:
            answer = client.get(path, headers=sent(user, plan))
        self.assertLessEqual(len(answer.headers.get_list("ratelimit")), 1)
        return answer.status_code, answer.headers, answer.content

    def answered(self, answer: Any) -> tuple[int, Any, bytes]:
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
        of = redis_ratelimit.fastapi.RateLimit

        async def by_user(request: Any) -> str | None:
            user = request.headers.get("x-user")
            return None if user is None else f"search:{user}"

        async def of_request(request: Any) -> Any:
            return limits_in(request)

        search = of(limiter, RATE, key=by_user, name="search")
        job = of(limiter, of_request, key=lambda _: "job", name="job")

        add_routes(app, [Depends(search)], [Depends(job)])

        @app.get("/cost", dependencies=[Depends(search)])
        def costly(reply: Any = Depends(job)) -> None:
            reply.reservation.set({"units": 1})

        @app.websocket("/ws")
        async def ws(websocket: WebSocket, _: None = Depends(search)) -> None:
            await websocket.accept()
            await websocket.send_text("hello")
            await websocket.close()

        site = of(limiter, SITE, key=lambda _: "site", name="site")
        api = APIRouter(prefix="/api", dependencies=[Depends(site)])

        @api.get("/search", dependencies=[Depends(search)])
        def both() -> str:
            return "both"

        app.include_router(api)
        return app

    def test_a_route_sets_the_true_cost_of_what_its_request_reserved(self) -> None:
        self.assertEqual(self.get("/cost", "a", plan="several")[0], 200)
        self.assertEqual(limiter_now().window_ro("{job}:units", UNITS).remaining, 3)

    def test_what_a_route_raises_as_denied_or_busy_is_answered_unless_the_response_has_begun(self) -> None:
        app, limiter = FastAPI(), limiter_soon()
        redis_ratelimit.fastapi.setup(app)
        clauses = [Clause.acquire("{job}:places", semaphore(1), name="places"), Clause.window("{job}:site", SITE)]

        async def denied() -> AsyncIterator[str]:
            yield "begun"
            async with limiter.acquire("{job}:places", semaphore(1)):
                self.fail("entered")

        @app.get("/job")
        async def working() -> str:
            async with limiter.acquire(clauses):
                return "done"

        @app.get("/busy")
        async def busy() -> None:
            raise Busy("busy")

        @app.get("/stream")
        async def streaming() -> StreamingResponse:
            return StreamingResponse(denied())

        with TestClient(app) as client:
            self.assertEqual(client.get("/job").json(), "done")
            limiter_now().reserve("{job}:places", semaphore(1))
            answer = client.get("/job")
            self.check_denied(answer.status_code, answer.headers, answer.content, ["places"])
            self.assertEqual(names(answer.headers["ratelimit-policy"]), ["places", "limit-2"])
            self.assertEqual(answer.headers["retry-after"], "1")
            answer = client.get("/busy")
            self.check_unavailable(answer.status_code, answer.headers, answer.content)
            self.assertEqual(answer.headers["retry-after"], "1")
            with self.assertRaises(Denied):
                client.get("/stream")

    def test_without_setup_a_denial_has_its_status_and_headers(self) -> None:
        with TestClient(self.app()) as client:
            answers = [client.get("/api/search", headers={"x-user": "a"}) for _ in range(3)]
            self.assertEqual([answer.status_code for answer in answers], [200, 200, 429])
            self.assertEqual([answer.headers["x-ratelimit-remaining"] for answer in answers], ["1", "0", "0"])
            for answer in answers:
                self.assertEqual(names(answer.headers["ratelimit-policy"]), ["site", "search"])
            self.assertIn("retry-after", answers[2].headers)

    def test_a_middleware_a_router_and_a_route_end_in_one_set_of_headers(self) -> None:
        app = self.app()
        redis_ratelimit.fastapi.setup(app)
        limiter = limiter_soon()

        async def check(scope: Any) -> Any:
            return await limiter.window(f"all:{client_address(scope)}", SITE)

        app.add_middleware(RateLimitMiddleware, check=check, limits=SITE, names="site")
        with TestClient(app) as client:
            answers = [client.get("/api/search", headers={"x-user": "a"}) for _ in range(3)]
        for answer in answers:
            for name in "ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining":
                self.assertEqual(len(answer.headers.get_list(name)), 1, name)
            self.assertEqual(names(answer.headers["ratelimit-policy"]), ["site", "site-2", "search"])
            self.assertEqual(answer.headers["x-ratelimit-limit"], "2")
        self.assertEqual([answer.headers["x-ratelimit-remaining"] for answer in answers], ["1", "0", "0"])
        self.check_denied(429, answers[2].headers, answers[2].content, ["search"])

    def test_a_websocket_route_is_closed(self) -> None:
        with TestClient(self.app()) as client:
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
        cases: list[tuple[Any, Any, dict[str, Any], str]] = [
            (limiter_now(), RATE, {}, "one of redis_ratelimit.asyncio"),
            (object(), RATE, {}, "limiter must be one of redis_ratelimit, not object$"),
            (limiter, "@free", {}, "kind must be .* with the policy '@free'"),
            (limiter, "@free", {"kind": "acquire"}, "not 'acquire'"),
            (limiter, "5/min", {}, r"Rate.per\('5/min'\) or Window.per\('5/min'\)"),
            (limiter, 5, {}, "limit must be a Rate, a Window or the name of a policy, not 5"),
            (limiter, RATE, {"key": "k"}, "key must be a function"),
            (limiter, RATE, {"key": None}, "key must be a function"),
            (limiter, RATE, {"kind": "window"}, "asked by throttle, not by window"),
            (limiter, RATE, {"version": 3}, "version must be one of 10"),
        ]
        for wrong, limit, options, says in cases:
            with self.subTest(says), self.assertRaisesRegex((TypeError, ValueError), says):
                of(wrong, limit, **{"key": str, **options})


class WithTheMiddleware(OfAFramework, OnAServer):
    def get(self, path: str, user: str | None = None, plan: str | None = None) -> tuple[int, Any, bytes]:
        of, limiter = redis_ratelimit.asgi.RateLimit, limiter_soon()
        check = of(limiter, RATE, key=self.by_user, name="search")
        if path in ("/job", "/stream"):
            check = of(limiter, self.limits, key=lambda _: "job", name="job")
        with TestClient(self.app(check=check), raise_server_exceptions=False) as client:
            answer = client.get(path, headers=sent(None if "free" in path else user, plan))
        return answer.status_code, answer.headers, answer.content

    def answered(self, answer: Any) -> tuple[int, Any, bytes]:
        with TestClient(self.checked(answer, limits="@free")) as client:
            found = client.get("/search")
        return found.status_code, found.headers, found.content

    def by_user(self, scope: Any) -> str | None:
        self.assertNotEqual(scope["type"], "lifespan")
        user = HTTPConnection(scope).headers.get("x-user")
        return None if user is None else f"search:{user}"

    async def limits(self, scope: Any) -> Any:
        return limits_in(HTTPConnection(scope))

    def checked(self, *answer: Any, **options: Any) -> Any:
        """An application whose limiter returns or raises what is given, or else asks the server, in a function."""
        limiter = fixed(answer[0], mock.AsyncMock) if answer else limiter_soon()

        async def check(scope: Any) -> Any:
            return await limiter.throttle(f"web:{client_address(scope)}", RATE)

        return self.app(**{"check": check, "limits": RATE, **options})

    def app(self, **options: Any) -> FastAPI:
        app = FastAPI()
        app.add_middleware(RateLimitMiddleware, **options)

        @app.websocket("/ws")
        async def ws(websocket: WebSocket) -> None:
            await websocket.accept(headers=[(b"x-own", b"1")])
            await websocket.close()

        add_routes(app)
        return app

    def test_another_application_may_answer_what_is_denied(self) -> None:
        async def sorry(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 420, "headers": []})
            await send({"type": "http.response.body", "body": b"sorry"})

        allowed = Reply(0, 0, 0, None, 0, reachable=False)
        cases = (DENIED, 420, "2"), (Busy("busy"), 420, "1"), (allowed, 200, None), (None, 200, None)
        for reply, status, retry_after in cases:
            with self.subTest(reply=reply), TestClient(self.checked(reply, denied=sorry)) as client:
                answer = client.get("/search")
                self.assertEqual((answer.status_code, answer.headers.get("retry-after")), (status, retry_after))

    def test_websocket_connections_are_counted_and_have_headers(self) -> None:
        app = self.checked(pk=client_address, names="web")
        with TestClient(app, client=("192.0.2.7", 5)) as client:
            with client.websocket_connect("/ws") as websocket:
                told = {name.decode(): value.decode() for name, value in websocket.extra_headers or []}
            self.assertEqual((told["x-own"], told["x-ratelimit-remaining"]), ("1", "1"))
            self.assertEqual(told["ratelimit-policy"], '"web";q=2;w=3600;pk=:MTkyLjAuMi43:')
            client.get("/none")
            with self.assertRaises(WebSocketDenialResponse) as denied:
                with client.websocket_connect("/ws"):
                    self.fail("let through")
            answer = denied.exception
            self.check_denied(answer.status_code, answer.headers, answer.content, ["web"])

    def test_a_server_that_cannot_answer_a_websocket_closes_it(self) -> None:
        for reply, code in (DENIED, 1008), (AWAY, 1013), (Busy("busy"), 1013):
            send = mock.AsyncMock()
            receive = mock.AsyncMock(return_value={"type": "websocket.connect"})
            scope = {"type": "websocket", "path": "/ws", "client": ("192.0.2.7", 5), "headers": []}
            asyncio.run(self.checked(reply)(scope, receive, send))
            self.assertEqual(
                [(each.args[0]["type"], each.args[0]["code"]) for each in send.mock_calls], [("websocket.close", code)]
            )


class WithFlask(OfAFramework, OnAServer):
    def get(self, path: str, user: str | None = None, plan: str | None = None) -> tuple[int, Any, bytes]:
        return self.answer(self.app(limiter_now()), path, user, plan)

    def answered(self, answer: Any) -> tuple[int, Any, bytes]:
        return self.answer(self.app(fixed(answer), "@free", kind="throttle", name=None), "/search", "a")

    def answer(self, app: flask.Flask, path: str, user: str | None, plan: str | None = None) -> tuple[int, Any, bytes]:
        with app.test_client().get(path, headers=sent(user, plan)) as answer:
            return answer.status_code, answer.headers, answer.data

    def app(self, limiter: Any, limit: Any = RATE, **options: Any) -> flask.Flask:
        app = flask.Flask("tests")
        app.logger.disabled = True
        redis_ratelimit.flask.setup(app)

        def by_user() -> str | None:
            user = flask.request.headers.get("x-user")
            return None if user is None else f"search:{user}"

        of = redis_ratelimit.flask.RateLimit
        limited = of(limiter, limit, key=by_user, **{"name": "search", **options})
        job = of(limiter, lambda: limits_in(flask.request), key=lambda: "job", name="job")

        @app.get("/search")
        @limited
        def search() -> str:
            """Searches."""
            return "found"

        self.assertEqual((search.__name__, search.__doc__), ("search", "Searches."))

        @app.get("/missing")
        @limited
        def missing() -> str:
            flask.abort(404)

        @app.get("/other")
        @limited
        async def soon() -> str:
            return "soon"

        @app.get("/own")
        @limited
        def own() -> str:
            add_reply(flask.request, *OWN)
            return "own"

        def failing() -> Any:
            raised(flask.request.path)

        for place, view in ("", limited(failing)), ("free-", failing):
            for name in f"{place}denied", f"{place}busy":
                app.add_url_rule(f"/{name}", name, view)

        @app.get("/job")
        @job
        def working() -> str:
            return work(plan_in(flask.request))

        @app.get("/stream")
        @job
        def streaming() -> Any:
            return (work(each) for each in [None])

        return app

    def test_a_limit_before_every_view_and_one_of_the_view_end_in_one_set_of_headers(self) -> None:
        limiter = limiter_now()
        app = self.app(limiter)
        site = redis_ratelimit.flask.RateLimit(limiter, SITE, key=lambda: "site", name="site", pk=lambda: b"all")
        app.before_request(site.check)
        client = app.test_client()
        answers = [client.get("/search", headers={"x-user": "a"}) for _ in range(3)]
        for answer in answers:
            self.assertEqual(len(answer.headers.getlist("ratelimit")), 1)
            self.assertEqual(names(answer.headers["ratelimit-policy"]), ["site", "search"])
            self.assertEqual(answer.headers["x-ratelimit-limit"], "2")
            self.assertIn("pk=:YWxs:", answer.headers["ratelimit"])
        self.check_denied(answers[2].status_code, answers[2].headers, answers[2].data, ["search"])
        # Each request has its own.
        self.assertEqual(names(client.get("/search").headers["ratelimit"]), ["site"])

    def test_after_setup_a_view_without_a_limit_has_headers_too(self) -> None:
        app = self.app(limiter_now())

        @app.get("/alone")
        def alone() -> str:
            add_reply(flask.request, *OWN)
            return "alone"

        _, fields, _ = self.answer(app, "/alone", "a")
        self.assertEqual(names(fields["ratelimit"]), ["own"])
        self.assertNotIn("ratelimit", self.answer(app, "/static", "a")[1])

    def test_a_request_that_ends_without_a_response_releases_what_it_holds(self) -> None:
        app = self.app(limiter_now())
        app.testing = True
        with self.assertRaises(ZeroDivisionError):
            app.test_client().get("/job", headers={"x-plan": "fail"})
        self.assertEqual(held(), "0")
        self.assertEqual(limiter_now().window_ro("{job}:units", UNITS).remaining, 4)

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
search_limit = of_django(limiter_now(), RATE, key=by_user, name="search")
soon_limiter = limiter_soon()


@search_limit
def search(request: Any) -> HttpResponse:
    if request.path == "/missing":
        raise Http404
    if request.path == "/own":
        add_reply(request, *OWN)
    if request.path in ("/denied", "/busy"):
        raised(request.path)
    return HttpResponse("found")


def failing(request: Any) -> None:
    raised(request.path)


@method_decorator(search_limit, name="dispatch")
class Search(View):  # type: ignore[misc]
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse("found by a class")


@of_django(soon_limiter, RATE, key=by_user, name="search")
async def search_soon(request: Any) -> HttpResponse:
    if request.path != "/soon":
        raised(request.path)
    return HttpResponse("found soon")


@of_django(limiter_now(), limits_in, key=lambda _: "job", name="job")
def working(request: Any) -> Any:
    if request.path == "/stream":
        return StreamingHttpResponse(work(each) for each in [None])
    return HttpResponse(work(plan_in(request)))


@of_django(soon_limiter, limits_in, key=lambda _: "job", name="job")
async def working_soon(request: Any) -> Any:
    async def parts() -> Any:
        yield work(None)

    return StreamingHttpResponse(parts()) if request.path == "/stream-soon" else HttpResponse(work(plan_in(request)))


views = dict.fromkeys(("search", "missing", "own", "denied", "busy"), search)
views |= {"other": Search.as_view(), "soon": search_soon, "soon-denied": search_soon, "soon-busy": search_soon}
views |= {"free-denied": failing, "free-busy": failing}
views |= {"job": working, "stream": working, "job-soon": working_soon, "stream-soon": working_soon}
urlpatterns = [path(name, view) for name, view in views.items()]


class WithDjango(OfAFramework, OnAServer):
    site = ["site"]

    def get(self, path: str, user: str | None = None, plan: str | None = None) -> tuple[int, Any, bytes]:
        answer = Client(raise_request_exception=False).get(path, headers=sent(user, plan))
        return answer.status_code, answer.headers, answer.getvalue()

    def answered(self, answer: Any) -> tuple[int, Any, bytes]:
        view: Any = of_django(fixed(answer), "@free", kind="throttle", key=lambda _: "k")(self.fail)
        found = view(RequestFactory().get("/"))
        return found.status_code, found.headers, found.content

    def test_the_headers_of_the_middleware_are_those_of_a_page_that_is_missing_too(self) -> None:
        self.assertEqual(names(self.get("/nowhere")[1]["ratelimit"]), ["site"])

    def test_a_view_that_is_a_coroutine_function_has_its_limit(self) -> None:
        async def run() -> list[Any]:
            client = AsyncClient(raise_request_exception=False)
            found = [await client.get("/soon", headers={"x-user": "a"}) for _ in range(3)]
            jobs = [await client.get("/job-soon", headers={"x-plan": plan}) for plan in ("several", "fail")]
            found += [await client.get(f"/soon-{path}", headers={"x-user": "b"}) for path in ("denied", "busy")]
            stream = await client.get("/stream-soon", headers={"x-plan": "several"})
            jobs.append([part async for part in stream.streaming_content])
            await soon_limiter.aclose()
            return [*found, *jobs]

        *answers, job, failed, stream = asyncio.run(run())
        self.assertEqual([answer.status_code for answer in answers], [200, 200, 429, 429, 503])
        self.check_denied(429, answers[2].headers, answers[2].content, ["search"])
        self.check_denied(429, answers[3].headers, answers[3].content, ["own"])
        self.assertEqual((job.content, failed.status_code, stream, held()), (b"held 1", 500, [b"held 1"], "0"))
        self.assertEqual(limiter_now().window_ro("{job}:units", UNITS).remaining, 0)
        self.assertIsNotNone(get_asgi_application())

    def test_a_limiter_of_the_wrong_kind_is_refused(self) -> None:
        async def view(request: Any) -> None: ...

        with self.assertRaisesRegex(TypeError, "must be one of redis_ratelimit.asyncio"):
            of_django(limiter_now(), RATE, key=str)(view)
        with self.assertRaisesRegex(TypeError, "must be a redis_ratelimit.Limiter, not one for asyncio"):
            of_django(limiter_soon(), RATE, key=str)(print)


class WithLitestar(unittest.TestCase):
    def test_the_reply_of_a_limiter_can_be_injected(self) -> None:
        reply = Reply(0, 5, 4, None, 1000, id=b"\xff")
        answers = {
            Reply: reply,
            AllReply: AllReply(**{**vars(reply), "clause": 1, "answers": (reply,)}),
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
        headers = [(b"X-Forwarded-For", field.encode()) for field in fields]
        scope = {"type": "http", "client": (peer, 5), "headers": headers}
        environ = {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": ",".join(fields)}
        unix = {"REMOTE_ADDR": ""}
        app = flask.Flask("addresses")

        def in_flask(environ: Any, **options: Any) -> str:
            with app.test_request_context(environ_overrides=environ):
                return redis_ratelimit.flask.client_address(**options)

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
