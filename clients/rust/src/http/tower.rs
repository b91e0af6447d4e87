//! A middleware for [tower](https://docs.rs/tower): limits requests, and adds headers with the state of the limits.
//!
//! [`RateLimitLayer`] asks a limiter before a request reaches the inner service. A request that a limit denies gets status
//! 429, and 503 if nobody could decide, with problem details. Several layers on one request, and handlers that ask limits by
//! themselves, produce one set of headers. The replies are in the extensions of the request and of its response as
//! [`RateLimits`], which is also an extractor with the feature `axum`.

use std::fmt;
use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{ready, Context, Poll, Waker};

use ::http::header::{HeaderName, HeaderValue, CONTENT_TYPE};
use ::http::request::Parts;
use ::http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::headers::tightest;
use super::{headers, Problem, ReplyWithOptions, PROBLEM_TYPE};
use crate::transport::BoxFuture;
use crate::{Clause, Cost, Error, Limiter, Reply, Reservation};

/// Returns the limits of one request.
type Clauses = dyn Fn(&Parts) -> Vec<Clause> + Send + Sync;
/// Returns the partition key of one request.
type PartitionKey = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// Limits the requests to a service.
///
/// ```
/// # use redis_ratelimit_client::{http::tower::RateLimitLayer, Clause, MemoryLimiter, Rate};
/// # use http::{Request, Response};
/// # use tower::{service_fn, Layer, ServiceExt};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let hello = service_fn(|_: Request<String>| async { Ok::<_, tower::BoxError>(Response::new(String::new())) });
/// let limiter = MemoryLimiter::new(); // or Limiter::open("redis://127.0.0.1/")
/// let rate = Rate::per("1/min")?;
/// let layer = RateLimitLayer::new(&limiter, move |request| {
///     let user = request.headers.get("x-user")?.to_str().ok()?; // no limit without a user
///     Some(Clause::take(format!("web:{user}"), &rate).name("site"))
/// });
/// let service = layer.layer(hello);
/// let ask = || Request::builder().header("x-user", "1").body(String::new());
/// let response = service.clone().oneshot(ask()?).await.unwrap();
/// assert_eq!(response.headers()["ratelimit"], r#""site";r=0;t=60"#);
/// let denied = service.oneshot(ask()?).await.unwrap();
/// assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"60".parse()?));
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RateLimitLayer<R = ProblemResponse> {
    limiter: Limiter,
    clauses: Arc<Clauses>,
    partition_key: Option<Arc<PartitionKey>>,
    standard: bool,
    x_ratelimit: bool,
    respond: R,
}

impl<R> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl RateLimitLayer {
    /// Creates a layer. `clauses` returns the limits of each request, such as `Some(clause)`, an array or a `Vec`. Of
    /// several limits, all or none take, as with [`Limiter::all`]. A request without any is not limited.
    ///
    /// In the headers a limit has the name of its clause, or else that of its policy, or `default`, or `limit-1` and so on.
    /// Keys are not shown.
    ///
    /// What a clause made by [`Clause::acquire`] reserves is held, and renewed, until the body of the response has ended or
    /// is dropped. Then it is applied, and a semaphore is released. If the service or the body fails, the status is 429 or
    /// 500 and above, or the request is dropped before there is a response, what was [set](RateLimits::set) is applied, and
    /// else everything is released.
    ///
    /// ```
    /// # use redis_ratelimit_client::{http::tower::RateLimitLayer, Clause, MemoryLimiter, Semaphore, Window};
    /// # use http::{Request, Response};
    /// # use tower::{service_fn, Layer, ServiceExt};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hello = service_fn(|_: Request<String>| async { Ok::<_, tower::BoxError>(Response::new(String::new())) });
    /// let (day, jobs) = (Window::per("1000/day")?, Semaphore::new(5));
    /// let layer = RateLimitLayer::new(&MemoryLimiter::new(), move |_| {
    ///     [
    ///         Clause::take("{site}:day", &day).name("day"),
    ///         Clause::acquire("{site}:jobs", &jobs).name("jobs"), // at most 5 requests at a time
    ///     ]
    /// });
    /// let response = layer.layer(hello).oneshot(Request::new(String::new())).await.unwrap();
    /// assert_eq!(response.headers()["ratelimit"], r#""day";r=999;t=86400, "jobs";r=4;t=20"#);
    /// # Ok(()) }
    /// ```
    pub fn new<C, F>(limiter: &Limiter, clauses: F) -> RateLimitLayer
    where
        C: IntoIterator<Item = Clause>,
        F: Fn(&Parts) -> C + Send + Sync + 'static,
    {
        RateLimitLayer {
            limiter: limiter.clone(),
            clauses: Arc::new(move |request| clauses(request).into_iter().collect()),
            partition_key: None,
            standard: true,
            x_ratelimit: true,
            respond: ProblemResponse,
        }
    }
}

impl<R> RateLimitLayer<R> {
    /// Adds to the headers who or what the quota of a request is for, such as a tenant. Clients see it.
    ///
    /// ```
    /// # use redis_ratelimit_client::{http::tower::RateLimitLayer, Clause, MemoryLimiter, Window};
    /// # use http::{Request, Response};
    /// # use tower::{service_fn, Layer, ServiceExt};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hello = service_fn(|_: Request<String>| async { Ok::<_, tower::BoxError>(Response::new(String::new())) });
    /// let window = Window::per("5/min")?;
    /// let layer = RateLimitLayer::new(&MemoryLimiter::new(), move |_| Some(Clause::take("site", &window)))
    ///     .partition_key(|request| Some(request.headers.get("x-tenant")?.as_bytes().to_vec()));
    /// let request = Request::builder().header("x-tenant", "acme").body(String::new())?;
    /// let response = layer.layer(hello).oneshot(request).await.unwrap();
    /// assert_eq!(response.headers()["ratelimit"], r#""default";r=4;t=60;pk=:YWNtZQ==:"#);
    /// # Ok(()) }
    /// ```
    pub fn partition_key(
        mut self,
        key: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        self.partition_key = Some(Arc::new(key));
        self
    }

    /// Sets whether `RateLimit` and `RateLimit-Policy` are written; the default is true.
    pub fn standard(mut self, written: bool) -> Self {
        self.standard = written;
        self
    }

    /// Sets whether `X-RateLimit-*` are written; the default is true.
    pub fn x_ratelimit(mut self, written: bool) -> Self {
        self.x_ratelimit = written;
        self
    }

    /// Answers refused requests with another response, to which the headers are added. It may be a function of a
    /// [`Problem`]:
    ///
    /// ```
    /// # use redis_ratelimit_client::{http::{tower::RateLimitLayer, Problem}, Clause, MemoryLimiter, Window};
    /// # use http::{Request, Response};
    /// # use tower::{service_fn, Layer, ServiceExt};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hello = service_fn(|_: Request<String>| async { Ok::<_, tower::BoxError>(Response::new(String::new())) });
    /// let nobody = Window::per("0/min")?;
    /// let layer = RateLimitLayer::new(&MemoryLimiter::new(), move |_| Some(Clause::take("site", &nobody)))
    ///     .respond(|problem: &Problem| Response::new(format!("{} slow down", problem.status())));
    /// let response = layer.layer(hello).oneshot(Request::new(String::new())).await.unwrap();
    /// assert_eq!(response.body().get_ref(), "429 slow down");
    /// # Ok(()) }
    /// ```
    pub fn respond<N>(self, respond: N) -> RateLimitLayer<N> {
        let RateLimitLayer { limiter, clauses, partition_key, standard, x_ratelimit, .. } = self;
        RateLimitLayer { limiter, clauses, partition_key, standard, x_ratelimit, respond }
    }

    /// Asks the limits of a request. Returns the reply with its options for the headers, and what was reserved.
    async fn decide(
        &self,
        clauses: Vec<Clause>,
        partition_key: Option<Vec<u8>>,
    ) -> Result<(ReplyWithOptions, Option<Reservation>), Error> {
        let reserves = clauses.iter().flat_map(Clause::with_alternatives).any(Clause::reserves);
        let (reply, reservation) = if reserves {
            match self.limiter.acquire_all(clauses).await {
                Ok(reservation) => (reservation.reply().clone(), Some(reservation)),
                Err(Error::Denied(reply)) => (*reply, None),
                Err(error) => return Err(error),
            }
        } else {
            (self.limiter.all(clauses).await?, None)
        };
        let mut reply = ReplyWithOptions::new(reply);
        if let Some(key) = partition_key {
            reply = reply.partition_key(key);
        }
        Ok((reply.standard(self.standard).x_ratelimit(self.x_ratelimit), reservation))
    }
}

impl<S, R: Clone> Layer<S> for RateLimitLayer<R> {
    type Service = RateLimit<S, R>;

    fn layer(&self, inner: S) -> RateLimit<S, R> {
        RateLimit { inner, layer: self.clone() }
    }
}

/// A service whose requests are limited, see [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S, R = ProblemResponse> {
    inner: S,
    layer: RateLimitLayer<R>,
}

/// Makes the response to a request that is refused.
pub trait Respond<B> {
    /// Returns the response, to which the headers of the limits are added.
    fn respond(&self, problem: &Problem) -> Response<B>;
}

/// Responds with problem details: [`Problem`] as JSON, with its headers. A layer around it adds those of its own limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemResponse;

impl<B: From<String>> Respond<B> for ProblemResponse {
    fn respond(&self, problem: &Problem) -> Response<B> {
        let mut response = Response::new(B::from(problem.to_string()));
        let status = StatusCode::from_u16(problem.status());
        *response.status_mut() = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let kind = HeaderValue::from_static(PROBLEM_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        insert_headers(&mut response, problem.headers());
        response.extensions_mut().insert(problem.clone());
        response
    }
}

fn insert_headers<B>(response: &mut Response<B>, headers: Vec<(&'static str, String)>) {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
}

impl<B, F: Fn(&Problem) -> Response<B>> Respond<B> for F {
    fn respond(&self, problem: &Problem) -> Response<B> {
        self(problem)
    }
}

impl<S, R, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S, R>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    R: Respond<ResBody> + Clone + Send + Sync + 'static,
    ReqBody: Send + 'static,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<ResponseBody<ResBody>>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The service that is ready answers, and its clone is made ready for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let (mut parts, body) = request.into_parts();
        let clauses = (layer.clauses)(&parts);
        let key = layer.partition_key.as_ref().and_then(|key| key(&parts));
        let is_outermost = parts.extensions.get::<RateLimits>().is_none();
        let limits = parts.extensions.get_or_insert_with(RateLimits::default).clone();
        Box::pin(async move {
            let asked = match clauses.is_empty() {
                true => Ok(None),
                false => layer.decide(clauses, key).await.map(Some),
            };
            let mut response = match limits.hold(asked) {
                Ok(mut hold) => {
                    let mut response = inner.call(Request::from_parts(parts, body)).await?;
                    limits.join(&mut response);
                    let status = response.status();
                    hold.has_failed =
                        status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
                    response.map(|body| ResponseBody { body, hold: Some(hold) })
                }
                Err((problem, error)) => {
                    let mut response = layer.respond.respond(&problem);
                    if problem == Problem::Busy {
                        insert_headers(&mut response, problem.headers());
                    }
                    error.map(|error| response.extensions_mut().insert(error));
                    response.map(ResponseBody::new)
                }
            };
            if is_outermost {
                limits.write(&mut response);
            }
            Ok(response)
        })
    }
}

pin_project! {
    /// The body of a response. Until it has ended or is dropped, it holds what the layer reserved for the request.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: B,
        hold: Option<Hold>,
    }
}

impl<B> ResponseBody<B> {
    /// Creates a body that holds nothing, for a [`Respond`] of a layer around another one.
    pub fn new(body: B) -> ResponseBody<B> {
        ResponseBody { body, hold: None }
    }

    /// Returns the body of the inner service, or the one of [`Respond`].
    pub fn get_ref(&self) -> &B {
        &self.body
    }
}

impl<B: From<String>> From<String> for ResponseBody<B> {
    fn from(text: String) -> ResponseBody<B> {
        ResponseBody::new(text.into())
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            if let Some(mut hold) = this.hold.take() {
                hold.has_failed |= frame.is_some();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The limits of a request, in the extensions of the request and of its response.
///
/// With the feature `axum` handlers take it as an argument. Without a layer it is empty, and only a denial has its headers.
///
/// If a handler responds with a [`Problem`], as `?` makes one of [`Error::Denied`], its replies are added too. Its body names
/// limits as without a layer, so give the clauses of layers names, lest two limits are named `default`.
///
/// ```
/// # use redis_ratelimit_client::{http::{tower::*, Problem, ReplyWithOptions}, Clause, MemoryLimiter, Window};
/// # use http::{Request, Response};
/// # use tower::{service_fn, Layer, ServiceExt};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = MemoryLimiter::new();
/// let (site, search) = (Window::per("100/min")?, Window::per("5/min")?);
/// let layer = RateLimitLayer::new(&limiter, move |_| Some(Clause::take("site", &site).name("site")));
///
/// // With axum: async fn handler(limits: RateLimits) -> Result<&'static str, Problem>
/// let handler = async move |limits: RateLimits| {
///     let reply = limiter.take("search", &search).await?;
///     limits.add(ReplyWithOptions::new(reply).limit(&search).name("search"))?;
///     Ok::<_, Problem>("found")
/// };
/// # let handler = std::sync::Arc::new(handler);
/// # let service = service_fn(move |request: Request<String>| {
/// #     let handler = handler.clone();
/// #     async move {
/// #         let text = handler(request.extensions().get::<RateLimits>().unwrap().clone()).await.unwrap();
/// #         Ok::<_, tower::BoxError>(Response::new(text.to_owned()))
/// #     }
/// # });
/// # let response = layer.layer(service).oneshot(Request::new(String::new())).await.unwrap();
/// assert_eq!(response.headers()["ratelimit"], r#""site";r=99;t=60, "search";r=4;t=60"#);
/// assert_eq!(response.headers()["x-ratelimit-remaining"], "4");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct RateLimits(Arc<Mutex<Asked>>);

#[derive(Debug, Default)]
struct Asked {
    replies: Vec<ReplyWithOptions>,
    /// What the layers have reserved; `None` if it is settled.
    reservations: Vec<Option<Reservation>>,
}

impl RateLimits {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the replies so far, those of the outermost layer first.
    pub fn replies(&self) -> Vec<Reply> {
        self.lock().replies.iter().map(|each| each.reply().clone()).collect()
    }

    /// Returns the reply that a client has to follow: the one that denies longest, or else the one with the least left.
    pub fn tightest(&self) -> Option<Reply> {
        tightest(self.lock().replies.iter()).map(|each| each.reply().clone())
    }

    /// Adds a reply to the headers of the response.
    ///
    /// # Errors
    ///
    /// The problem to respond with, if the reply is a denial.
    pub fn add(&self, reply: ReplyWithOptions) -> Result<(), Problem> {
        let is_allowed = reply.reply().is_allowed();
        let replies = &mut self.lock().replies;
        replies.push(reply);
        Problem::of(replies).filter(|_| !is_allowed).map_or(Ok(()), Err)
    }

    /// Sets what was really used of what the innermost layer that reserves has reserved, see [`Reservation::set`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] as for [`Reservation::set`], or if no layer has reserved anything.
    pub fn set(&self, cost: impl Into<Cost>) -> Result<(), Error> {
        let innermost = &mut self.lock().reservations;
        let innermost = innermost.iter_mut().rev().find_map(Option::as_mut);
        innermost.ok_or_else(Error::no_layer_reserves)?.set(cost)
    }

    /// Adds the answer of a layer. Returns the hold on what it reserved, or the problem that the request is refused with.
    fn hold(
        &self,
        asked: Result<Option<(ReplyWithOptions, Option<Reservation>)>, Error>,
    ) -> Result<Hold, (Problem, Option<Error>)> {
        let asked = asked.map_err(|error| (Problem::from(&error), Some(error)))?;
        let mut at = usize::MAX;
        if let Some((reply, reservation)) = asked {
            self.add(reply).map_err(|problem| (problem, None))?;
            let reservations = &mut self.lock().reservations;
            at = reservations.len();
            reservations.push(reservation);
        }
        Ok(Hold { limits: self.clone(), at, has_failed: true })
    }

    /// Moves the replies of a problem that the service responds with from its headers to those of the request, where they
    /// may be already.
    fn join<B>(&self, response: &mut Response<B>) {
        let problem = response.extensions_mut().remove();
        let Some(Problem::QuotaExceeded { replies: denied, .. }) = problem else { return };
        for (name, _) in headers(&denied) {
            response.headers_mut().remove(name);
        }
        let replies = &mut self.lock().replies;
        for each in denied {
            if !replies.contains(&each) {
                replies.push(each);
            }
        }
    }

    /// Writes the headers, and keeps the answers with the response.
    fn write<B>(&self, response: &mut Response<B>) {
        insert_headers(response, headers(&self.lock().replies));
        response.extensions_mut().insert(self.clone());
    }
}

/// What a layer reserved. It is settled when this is dropped, whoever else has the [`RateLimits`].
#[derive(Debug)]
struct Hold {
    limits: RateLimits,
    /// The index of the reservation.
    at: usize,
    /// True until the service has responded, and after a failure. Then only what was set is applied.
    has_failed: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let reservation = self.limits.lock().reservations.get_mut(self.at).and_then(Option::take);
        if let Some(mut reservation) = reservation.filter(|_| !self.has_failed) {
            // It goes on in the background, which reports errors.
            let _ = pin!(reservation.apply()).poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> axum_core::extract::FromRequestParts<S> for RateLimits {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<RateLimits, Self::Rejection> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum_core::response::IntoResponse for Problem {
    fn into_response(self) -> axum_core::response::Response {
        ProblemResponse.respond(&self)
    }
}

#[cfg(test)]
mod tests;
