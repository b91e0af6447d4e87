use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ::tower::limit::ConcurrencyLimit;
use ::tower::util::BoxCloneService;
use ::tower::{service_fn, ServiceExt};

use super::*;
use crate::testing::Double;
use crate::{MemoryLimiter, Rate, Semaphore, Unreachable, Window};

type Never = Result<Response<String>, Infallible>;
type Route = BoxCloneService<Request<String>, Response<String>, Infallible>;

fn request() -> Request<String> {
    Request::new(String::new())
}

fn header<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Counts the requests that reach it.
fn inner() -> (Arc<AtomicUsize>, Route) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let service = service_fn(move |_: Request<String>| {
        counted.fetch_add(1, Relaxed);
        std::future::ready::<Never>(Ok(Response::new("done".into())))
    });
    (count, Route::new(service))
}

#[tokio::test]
async fn several_layers_on_a_request_end_in_one_set_of_headers() {
    let limiter = MemoryLimiter::new();
    let rate = Rate::per("100/min").unwrap();
    let site = RateLimitLayer::new(&limiter, move |_| Some(Clause::take("site", &rate)));
    let (minute, day) = (Window::per("1/min").unwrap(), Window::per("9/day").unwrap());
    let search = RateLimitLayer::new(&limiter, move |_| {
        [("minute", &minute), ("day", &day)]
            .map(|(name, window)| Clause::take(name, window).name(name))
    });
    let (count, service) = inner();
    let service = site.layer(search.layer(service));
    let allowed = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((allowed.status(), allowed.body().size_hint().exact()), (StatusCode::OK, Some(4)));
    assert_eq!(header(&allowed, "retry-after"), "");
    let policies = r#""default";q=100;w=60, "minute";q=1;w=60, "day";q=9;w=86400"#;
    assert_eq!(header(&allowed, "ratelimit-policy"), policies);
    assert_eq!(header(&allowed, "x-ratelimit-limit"), "1");
    assert_eq!(allowed.headers().get_all("ratelimit").iter().count(), 1);
    assert_eq!(allowed.extensions().get::<RateLimits>().unwrap().replies().len(), 2);
    let denied = service.oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "ratelimit-policy"), policies);
    assert_eq!(header(&denied, "content-type"), "application/problem+json");
    let body = denied.body().get_ref().get_ref();
    assert!(body.contains(r#""violated-policies":["minute"]"#), "{body}");
    assert!(!denied.extensions().get::<RateLimits>().unwrap().tightest().unwrap().is_allowed());
    assert_eq!(count.load(Relaxed), 1);
}

#[tokio::test]
async fn a_limit_without_a_name_is_not_named_after_its_key() {
    let window = Window::new(0, std::time::Duration::from_secs(60));
    let layer = RateLimitLayer::new(&MemoryLimiter::new(), move |_| {
        let clause = |key| Clause::take(key, &window);
        [clause("key:sk-1"), clause("key:sk-2").name("k\u{e4}"), clause("key:sk-3")]
    });
    let response = layer.layer(inner().1).oneshot(request()).await.unwrap();
    let policies = r#""limit-1";q=0;w=60, "k\\u{e4}";q=0;w=60, "limit-3";q=0;w=60"#;
    assert_eq!(header(&response, "ratelimit-policy"), policies);
    for text in [header(&response, "ratelimit"), response.body().get_ref()] {
        assert!(text.contains("limit-1") && !text.contains("key"), "{text}");
    }
}

/// Returns the response to a request whose limits a server decides that is away, and how many requests reached the service.
async fn without_server(unreachable: Unreachable) -> (Response<ResponseBody<String>>, usize) {
    let double = Double::new(|_| async { Err("refused".into()) });
    let limiter = Limiter::builder(double.servers()).unreachable(unreachable).build().unwrap();
    let nobody = Window::per("0/min").unwrap();
    let layer = RateLimitLayer::new(&limiter, move |_| Some(Clause::take("all", &nobody)));
    let (count, service) = inner();
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    (response, count.load(Relaxed))
}

#[tokio::test]
async fn what_nobody_decides_is_answered_503_unless_it_is_allowed() {
    let (other, decided) = (MemoryLimiter::new(), r#""default";q=0;w=60"#);
    for (unreachable, status, policy, kind) in [
        (Unreachable::Allow, 200, "", "done"),
        (Unreachable::Deny, 503, "", "temporary-reduced-capacity"),
        (Unreachable::Error, 503, "", "temporary-reduced-capacity"),
        (Unreachable::Limiter(other.into()), 429, decided, r#""violated-policies":["default"]"#),
    ] {
        let is_error = matches!(unreachable, Unreachable::Error);
        let (response, count) = without_server(unreachable).await;
        assert_eq!((response.status().as_u16(), count), (status, usize::from(status == 200)));
        assert_eq!(header(&response, "ratelimit-policy"), policy);
        assert_eq!(response.extensions().get::<Error>().is_some(), is_error);
        assert!(response.body().get_ref().contains(kind), "{response:?}");
    }
    for (error, status) in [(Error::Busy("busy".into()), 503), (Error::zero("quantity"), 500)] {
        assert_eq!(Problem::from(error).status(), status);
    }
}

/// Adds the reply of a limit of its own to those of the layers, and responds with status 200 or with the problem.
fn route(limiter: &MemoryLimiter, window: &Window) -> Route {
    let (limiter, window) = (limiter.clone(), window.clone());
    Route::new(service_fn(move |request: Request<String>| {
        let (limiter, window) = (limiter.clone(), window.clone());
        async move {
            let limits: RateLimits = request.extensions().get().cloned().unwrap();
            let reply = limiter.take("route", &window).await.unwrap();
            let reply = ReplyWithOptions::new(reply).limit(&window).name("route");
            Never::Ok(match limits.add(reply) {
                Ok(()) => Response::new("done".into()),
                Err(problem) => ProblemResponse.respond(&problem),
            })
        }
    }))
}

/// Only the limit of the layer was in the headers.
#[tokio::test]
async fn a_route_adds_its_limit_to_those_of_the_layer() {
    let limiter = MemoryLimiter::new();
    let (site, window) = (Window::per("9/min").unwrap(), Window::per("1/min").unwrap());
    let layer = RateLimitLayer::new(&limiter, move |_| Some(Clause::take("site", &site)));
    let service = layer.layer(route(&limiter, &window));
    let allowed = service.clone().oneshot(request()).await.unwrap();
    let policies = r#""default";q=9;w=60, "route";q=1;w=60"#;
    assert_eq!(header(&allowed, "ratelimit-policy"), policies);
    assert_eq!(header(&allowed, "x-ratelimit-limit"), "1");
    let denied = service.oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "ratelimit-policy"), policies);
    assert_eq!(header(&denied, "retry-after"), "60");
    assert!(denied.body().get_ref().contains(r#""violated-policies":["route"]"#));
    // The layer of the route has no limit for this request.
    let layer = RateLimitLayer::new(&limiter, |_| None);
    let response = layer.layer(route(&limiter, &window)).oneshot(request()).await.unwrap();
    assert_eq!(header(&response, "ratelimit-policy"), r#""route";q=1;w=60"#);
}

/// Responds with the problem of what the limiter answers to a request for a place and for two tokens, as `?` makes it.
fn reserving_route(limiter: &Limiter) -> Route {
    let limiter = limiter.clone();
    Route::new(service_fn(move |_: Request<String>| {
        let limiter = limiter.clone();
        async move {
            let handler = async || {
                let (jobs, tokens) = (Semaphore::new(9), Window::per("1/min").unwrap());
                let jobs = Clause::acquire("{a}jobs", &jobs);
                let tokens = Clause::take("{a}tokens", &tokens).name("tokens");
                limiter.acquire_all([jobs, tokens]).await?.apply().await?;
                Ok::<_, Problem>(Response::new("done".into()))
            };
            Never::Ok(handler().await.unwrap_or_else(|problem| ProblemResponse.respond(&problem)))
        }
    }))
}

/// It had no Retry-After, nor headers of the limits, and the limit was named "limit-2".
#[tokio::test]
async fn a_denial_that_a_route_returns_as_an_error_joins_the_headers_of_the_request() {
    let limiter = MemoryLimiter::new();
    let route = reserving_route(&limiter);
    assert_eq!(route.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    let policies = r#""limit-1";q=9;qu="concurrent-requests", "tokens";q=1;w=60"#;
    let alone = route.clone().oneshot(request()).await.unwrap();
    let site = Window::per("9/min").unwrap();
    let layer = RateLimitLayer::new(&limiter, move |_| Some(Clause::take("site", &site)));
    let outer = RateLimitLayer::new(&limiter, |_| None);
    let joined = outer.layer(layer.layer(route)).oneshot(request()).await.unwrap();
    assert_eq!(header(&alone, "ratelimit-policy"), policies);
    let expected = format!(r#""default";q=9;w=60, {policies}"#);
    assert_eq!(header(&joined, "ratelimit-policy"), expected);
    assert_eq!(joined.headers().get_all("ratelimit").iter().count(), 1);
    assert_eq!((header(&alone, "retry-after"), header(&joined, "retry-after")), ("60", "60"));
    for (status, body) in
        [(alone.status(), alone.body()), (joined.status(), joined.body().get_ref().get_ref())]
    {
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(body.contains(r#""violated-policies":["tokens"]"#), "{body}");
    }
}

#[tokio::test]
async fn the_reply_of_a_denied_reservation_names_its_limits() {
    let limiter = MemoryLimiter::new();
    let (jobs, user) = (Semaphore::new(1), Window::per("1/min").unwrap());
    let _held = limiter.acquire("jobs", &jobs).await.unwrap();
    // The names of clauses are shown, but not the keys that are the default names.
    let clauses = || [Clause::acquire("key:sk-1", &user), Clause::acquire("jobs", &jobs).name("j")];
    let Err(Error::Denied(reply)) = limiter.acquire_all(clauses()).await else { panic!() };
    let reply = ReplyWithOptions::new(*reply);
    let problem = Problem::of(std::slice::from_ref(&reply)).unwrap().to_string();
    assert!(problem.contains(r#""violated-policies":["j"]"#), "{problem}");
    let policies = |reply: ReplyWithOptions| headers(&[reply]).swap_remove(0).1;
    let expected = r#""limit-1";q=1;w=60, "j";q=1;qu="concurrent-requests""#;
    assert_eq!(policies(reply.clone()), expected);
    let renamed = reply.name("user").limit(&Window::per("2/day").unwrap());
    assert!(policies(renamed).starts_with(r#""user";q=1;w=86400, "j""#));
    let Err(Error::Denied(reply)) = limiter.acquire("jobs", &jobs).await else { panic!() };
    let expected = r#""default";q=1;qu="concurrent-requests""#;
    assert_eq!(policies(ReplyWithOptions::new(*reply)), expected);
}

/// The limit of the problem has room after a minute, but the other one never has.
#[tokio::test]
async fn a_route_that_is_also_denied_for_good_has_no_retry_after() {
    let service = service_fn(|request: Request<String>| async move {
        let (limiter, window) = (MemoryLimiter::new(), Window::per("1/min").unwrap());
        let limits: &RateLimits = request.extensions().get().unwrap();
        let never = limiter.take("a", &window).quantity(2).await.unwrap();
        let _ = limits.add(ReplyWithOptions::new(never)).unwrap_err();
        let _ = limiter.take("b", &window).await.unwrap();
        let problem = limiter.acquire("b", &window).await.unwrap_err().into();
        Never::Ok(ProblemResponse.respond(&problem))
    });
    let layer = RateLimitLayer::new(&MemoryLimiter::new(), |_| None);
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    assert_eq!(header(&response, "ratelimit-policy"), r#""default";q=1, "default-2";q=1;w=60"#);
    assert_eq!(header(&response, "retry-after"), "");
}

#[tokio::test]
async fn a_server_without_time_is_asked_again_after_a_second() {
    let double = Double::new(|_| async { Err("refused".into()) });
    let away = Limiter::builder(double.servers()).build().unwrap();
    let busy = |_: Request<String>| async {
        Never::Ok(ProblemResponse.respond(&Error::Busy("busy".into()).into()))
    };
    let response = busy(request()).await.unwrap();
    assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (503, "1"));
    let layer = RateLimitLayer::new(&away, |_| None);
    let response = layer.layer(service_fn(busy)).oneshot(request()).await.unwrap();
    assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (503, "1"));
    let response = reserving_route(&away).oneshot(request()).await.unwrap();
    assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (503, ""));
}

/// Lets other tasks go on until all that is settled in the background is settled.
async fn take_turns() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A body that is sent in parts, of which an error is the last.
struct Parts(VecDeque<Result<&'static str, &'static str>>);

impl Body for Parts {
    type Data = &'static [u8];
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<&'static [u8]>, &'static str>>> {
        Poll::Ready(self.0.pop_front().map(|part| part.map(|text| Frame::data(text.as_bytes()))))
    }
}

/// How a request of [`reserving`] goes on.
#[derive(Clone, Copy, Debug, Default)]
struct Course {
    /// The status of the response; `None` if the service fails.
    status: Option<u16>,
    /// The cost of the tokens, which the service sets.
    cost: Option<u64>,
    /// The same, when a part of the body was sent.
    cost_of_body: Option<u64>,
    /// True if the body is dropped when a part of it was sent.
    is_dropped: bool,
    /// True if the body fails when a part of it was sent.
    fails: bool,
}

/// Returns how many permits of the semaphore are held while the service works, and when a part of the body was sent, and
/// what is left of 10 tokens at the end, of which 4 were reserved.
async fn reserving(course: Course) -> (usize, usize, u64) {
    let limiter = MemoryLimiter::new();
    let (tokens, jobs) = (Window::per("10/min").unwrap(), Semaphore::new(5));
    let (window, inside) = (tokens.clone(), limiter.clone());
    let layer = RateLimitLayer::new(&limiter, move |_| {
        let tokens = Clause::acquire("{a}tokens", &tokens).quantity(4).name("tokens");
        [tokens, Clause::acquire("{a}jobs", &jobs)]
    });
    let held = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&held);
    let service = service_fn(move |request: Request<String>| {
        let (limiter, held) = (inside.clone(), Arc::clone(&counted));
        async move {
            held.store(limiter.held("{a}jobs").await.unwrap().len(), Relaxed);
            if let Some(cost) = course.cost {
                let limits: &RateLimits = request.extensions().get().unwrap();
                limits.set([("tokens", cost)]).unwrap();
            }
            let status = StatusCode::from_u16(course.status.ok_or("the service failed")?).unwrap();
            let last = if course.fails { Err("the body failed") } else { Ok("all") };
            let body = Parts([Ok("a part, "), last].into());
            Ok::<_, &str>(Response::builder().status(status).body(body).unwrap())
        }
    });
    let never = |_: &Problem| -> Response<Parts> { unreachable!() };
    let (mut held_in_body, mut _kept) = (0, None);
    let response = layer.respond(never).layer(service).oneshot(request());
    if let Ok(response) = response.await {
        let (parts, mut body) = response.into_parts();
        let mut frame = async || poll_fn(|to| Pin::new(&mut body).poll_frame(to)).await;
        assert!(frame().await.is_some());
        take_turns().await;
        held_in_body = limiter.held("{a}jobs").await.unwrap().len();
        if let Some(cost) = course.cost_of_body {
            parts.extensions.get::<RateLimits>().unwrap().set([("tokens", cost)]).unwrap();
        }
        while !course.is_dropped && frame().await.is_some() {}
        _kept = (!course.is_dropped).then_some(body);
    }
    take_turns().await;
    for key in ["{a}tokens", "{a}jobs"] {
        assert!(limiter.held(key).await.unwrap().is_empty(), "{course:?}");
    }
    let left = limiter.look("{a}tokens", &window).await.unwrap().remaining;
    (held.load(Relaxed), held_in_body, left)
}

#[tokio::test]
async fn what_a_clause_reserves_is_held_until_the_body_has_ended() {
    let of = |status| Course { status: Some(status), ..Course::default() };
    let fails = Course { fails: true, ..of(200) };
    let cases = [
        (of(200), 6),
        (of(404), 6),
        (of(429), 10),
        (of(500), 10),
        (Course { cost: Some(1), ..of(200) }, 9),
        (Course { cost: Some(1), ..of(500) }, 9),
        (Course { cost: Some(1), cost_of_body: Some(2), ..of(200) }, 8),
        (Course { is_dropped: true, ..of(200) }, 6),
        (fails, 10),
        (Course { cost_of_body: Some(2), ..fails }, 8),
    ];
    for (course, left) in cases {
        assert_eq!(reserving(course).await, (1, 1, left), "{course:?}");
    }
    assert_eq!(reserving(Course::default()).await, (1, 0, 10), "the service fails");
}

#[tokio::test]
async fn a_request_that_is_dropped_releases_what_its_layer_reserved() {
    let (limiter, jobs) = (MemoryLimiter::new(), Semaphore::new(1));
    let layer = RateLimitLayer::new(&limiter, move |_| Some(Clause::acquire("jobs", &jobs)));
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let service = service_fn(move |request: Request<String>| {
        *keep.lock().unwrap() = request.extensions().get::<RateLimits>().cloned();
        std::future::pending::<Never>()
    });
    let mut response = Box::pin(layer.clone().layer(service).oneshot(request()));
    while kept.lock().unwrap().is_none() {
        let poll = response.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
    }
    let denied = layer.layer(inner().1).oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(response);
    take_turns().await;
    assert!(limiter.held("jobs").await.unwrap().is_empty());
    let nothing = kept.lock().unwrap().take().unwrap().set(1);
    assert!(matches!(nothing, Err(Error::InvalidArgument(_))), "{nothing:?}");
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let rate = Rate::per("9/s").unwrap();
    let layer = RateLimitLayer::new(&MemoryLimiter::new(), move |request| {
        (!request.headers.contains_key("free")).then(|| Clause::take("all", &rate))
    });
    // Only the instance that was ready may be called.
    let inner = service_fn(|_| async { Never::Ok(Response::new(String::new())) });
    let mut service = layer.layer(ConcurrencyLimit::new(inner, 1));
    for is_limited in [true, false, true] {
        let mut request = request();
        if !is_limited {
            request.headers_mut().insert("free", HeaderValue::from_static("1"));
        }
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert!(response.body().is_end_stream());
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_handler_of_axum_gets_the_replies_and_none_without_a_layer() {
    use axum_core::extract::FromRequestParts;
    use axum_core::response::IntoResponse;

    let (mut parts, ()) = Request::new(()).into_parts();
    let none = RateLimits::from_request_parts(&mut parts, &()).await.unwrap();
    assert!(none.tightest().is_none());
    let limits = RateLimits::default();
    let denied = limits.add(ReplyWithOptions::new(Reply::unreached(false))).unwrap_err();
    parts.extensions.insert(limits);
    let some = RateLimits::from_request_parts(&mut parts, &()).await.unwrap();
    assert_eq!(some.replies().len(), 1);
    assert_eq!(denied.into_response().status(), StatusCode::SERVICE_UNAVAILABLE);
}
