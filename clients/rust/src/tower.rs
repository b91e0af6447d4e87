//! A middleware for [tower](https://docs.rs/tower): limits requests, and adds headers with the state of the limits.
//!
//! [`RateLimitLayer`] asks a limiter before a request reaches the inner service. A denied request gets status 429, or 503 if
//! no server could decide, with problem details. Several layers on one request produce one set of headers. The replies are
//! in the extensions of the request as [`RateLimits`], which is also an extractor with the feature `axum`.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use ::http::header::{HeaderName, HeaderValue, CONTENT_TYPE};
use ::http::request::Parts;
use ::http::{HeaderMap, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::clause::Clause;
use crate::http::{checked_name, headers, tightest, Problem, ReplyWithOptions, PROBLEM_TYPE};
use crate::limit::Take;
use crate::transport::BoxFuture;
use crate::{Error, Limiter, Reply};

/// Asks the limits of one request; `None` if it has none.
type Ask =
    dyn Fn(&Parts) -> Option<BoxFuture<'static, Result<ReplyWithOptions, Error>>> + Send + Sync;
/// The partition key of one request.
type PartitionKey = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// Returns the address of a client as a part of a key, see [`http::client_address`](crate::http::client_address).
#[doc = example!(tower)]
/// use redis_ratelimit_client::tower::client_address;
///
/// let layer = RateLimitLayer::new(&MemoryLimiter::new(), &Window::per("5/min")?, |request| {
///     // In axum, `request.extensions.get::<ConnectInfo<SocketAddr>>()` has the peer.
///     Some(format!("web:{}", client_address(None, &request.headers, 1, 64)))
/// });
/// let service = layer.layer(hello);
/// for (address, left) in [("2001:db8::1", 4), ("2001:db8::2", 3)] {
///     let request = Request::builder().header("x-forwarded-for", address).body(String::new())?;
///     let response = service.clone().oneshot(request).await?;
///     assert_eq!(response.headers()["x-ratelimit-remaining"], left.to_string());
/// }
#[doc = example!(end)]
pub fn client_address(
    peer: Option<IpAddr>,
    headers: &HeaderMap,
    proxies: usize,
    ipv6_prefix: u8,
) -> String {
    let values = headers.get_all("x-forwarded-for").iter();
    let texts: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    crate::http::client_address(peer, texts.iter().map(AsRef::as_ref), proxies, ipv6_prefix)
}

/// Limits the requests to a service.
#[doc = example!(tower)]
/// let limiter = MemoryLimiter::new(); // or Limiter::open("redis://127.0.0.1/")
/// let layer = RateLimitLayer::new(&limiter, &Rate::per("1/min")?, |request| {
///     let user = request.headers.get("x-user")?.to_str().ok()?; // no limit without a user
///     Some(format!("web:{user}"))
/// });
/// let service = layer.name("site")?.layer(hello);
/// let ask = || Request::builder().header("x-user", "1").body(String::new());
/// let response = service.clone().oneshot(ask()?).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""site";r=0;t=60"#);
/// let denied = service.oneshot(ask()?).await?;
/// assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"60".parse()?));
#[doc = example!(end)]
#[derive(Clone)]
#[must_use]
pub struct RateLimitLayer<R = ProblemResponse> {
    ask: Arc<Ask>,
    partition_key: Option<Arc<PartitionKey>>,
    name: Option<String>,
    standard: bool,
    x_ratelimit: bool,
    respond: R,
}

impl<R> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RateLimitLayer {
    fn asking(ask: Arc<Ask>) -> RateLimitLayer {
        RateLimitLayer {
            ask,
            partition_key: None,
            name: None,
            standard: true,
            x_ratelimit: true,
            respond: ProblemResponse,
        }
    }

    /// Takes 1 from `limit` for each request. `key` makes the key; a request for which it returns `None` is not limited.
    pub fn new<L, K, F>(limiter: &Limiter, limit: &L, key: F) -> RateLimitLayer
    where
        L: Take + Clone,
        K: AsRef<[u8]> + Send + 'static,
        F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    {
        let (limiter, limit) = (limiter.clone(), Arc::new(limit.clone()));
        let any_limit = Arc::new(limit.to_any());
        RateLimitLayer::asking(Arc::new(move |request| {
            let key = key(request)?;
            let (limiter, limit) = (limiter.clone(), Arc::clone(&limit));
            let any_limit = Arc::clone(&any_limit);
            Some(Box::pin(async move {
                let reply = limiter.take(key.as_ref(), &*limit).await?;
                Ok(ReplyWithOptions::new(reply).any_limit(any_limit))
            }))
        }))
    }

    /// Asks several limits for each request as [`Limiter::all`] does. `clauses` says which; a request for which it returns
    /// `None` is not limited. In the headers the limits have the names of their clauses; without one, that of the policy, or
    /// `limit-1` and so on. Keys are not shown.
    #[doc = example!(tower)]
    /// let (minute, day) = (Window::per("60/min")?, Window::per("1000/day")?);
    /// let layer = RateLimitLayer::all(&MemoryLimiter::new(), move |_| {
    ///     Some(vec![
    ///         Clause::take("{site}:minute", &minute).name("minute"),
    ///         Clause::take("{site}:day", &day).name("day"),
    ///     ])
    /// });
    /// let response = layer.layer(hello).oneshot(Request::new(String::new())).await?;
    /// assert_eq!(response.headers()["ratelimit"], r#""minute";r=59;t=60, "day";r=999;t=86400"#);
    #[doc = example!(end)]
    pub fn all<F>(limiter: &Limiter, clauses: F) -> RateLimitLayer
    where
        F: Fn(&Parts) -> Option<Vec<Clause>> + Send + Sync + 'static,
    {
        let limiter = limiter.clone();
        RateLimitLayer::asking(Arc::new(move |request| {
            let clauses = clauses(request)?;
            let limiter = limiter.clone();
            Some(Box::pin(async move {
                let all =
                    clauses.iter().flat_map(|each| std::iter::once(each).chain(&each.alternatives));
                let named: Vec<_> =
                    all.map(|each| (each.name.clone(), each.limit.clone())).collect();
                let reply = limiter.all(clauses).await?;
                let mut made = ReplyWithOptions::new(reply);
                for (name, limit) in named {
                    made = made.clause_name(name).any_limit(Arc::new(limit));
                }
                Ok(made)
            }))
        }))
    }
}

impl<R> RateLimitLayer<R> {
    /// Sets the name of a single limit in the headers; the default is the policy's, or `default`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name that is not printable ASCII.
    pub fn name(mut self, name: impl Into<String>) -> Result<Self, Error> {
        self.name = Some(checked_name(name.into())?);
        Ok(self)
    }

    /// Adds to the headers who or what the quota of a request is for, such as a tenant. Clients see it.
    #[doc = example!(tower)]
    /// let layer = RateLimitLayer::new(&MemoryLimiter::new(), &Window::per("5/min")?, |_| Some("site"))
    ///     .partition_key(|request| Some(request.headers.get("x-tenant")?.as_bytes().to_vec()));
    /// let request = Request::builder().header("x-tenant", "acme").body(String::new())?;
    /// let response = layer.layer(hello).oneshot(request).await?;
    /// assert_eq!(response.headers()["ratelimit"], r#""default";r=4;t=60;pk=:YWNtZQ==:"#);
    #[doc = example!(end)]
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
    #[doc = example!(tower)]
    /// let nobody = Window::new(0, Duration::from_secs(60));
    /// let layer = RateLimitLayer::new(&MemoryLimiter::new(), &nobody, |_| Some("site"))
    ///     .respond(|problem: &Problem| Response::new(format!("{} slow down", problem.status())));
    /// let response = layer.layer(hello).oneshot(Request::new(String::new())).await?;
    /// assert_eq!(response.body(), "429 slow down");
    #[doc = example!(end)]
    pub fn respond<N>(self, respond: N) -> RateLimitLayer<N> {
        let RateLimitLayer { ask, partition_key, name, standard, x_ratelimit, .. } = self;
        RateLimitLayer { ask, partition_key, name, standard, x_ratelimit, respond }
    }

    /// Asks the limits of a request. Returns the replies with their options for the headers.
    fn ask(
        &self,
        request: &Parts,
    ) -> Option<impl Future<Output = Result<ReplyWithOptions, Error>> + Send + 'static> {
        let asking = (self.ask)(request)?;
        let key = self.partition_key.as_ref().and_then(|key| key(request));
        let name = self.name.clone();
        let (standard, x_ratelimit) = (self.standard, self.x_ratelimit);
        Some(async move {
            let mut made = asking.await?.standard(standard).x_ratelimit(x_ratelimit);
            if let Some(name) = name {
                made = made.name(name)?;
            }
            Ok(match key {
                Some(key) => made.partition_key(key),
                None => made,
            })
        })
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

/// Responds with problem details: [`Problem`] as JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemResponse;

impl<B: From<String>> Respond<B> for ProblemResponse {
    fn respond(&self, problem: &Problem) -> Response<B> {
        let mut response = Response::new(B::from(problem.to_string()));
        let status = StatusCode::from_u16(problem.status());
        *response.status_mut() = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let kind = HeaderValue::from_static(PROBLEM_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

impl<B, F: Fn(&Problem) -> Response<B>> Respond<B> for F {
    fn respond(&self, problem: &Problem) -> Response<B> {
        self(problem)
    }
}

impl<S, R, Body, Answer> Service<Request<Body>> for RateLimit<S, R>
where
    S: Service<Request<Body>, Response = Response<Answer>> + Clone + Send + 'static,
    S::Future: Send,
    R: Respond<Answer> + Clone + Send + Sync + 'static,
    Body: Send + 'static,
{
    type Response = Response<Answer>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Answer>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The service that is ready answers, and its clone is made ready for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (mut parts, body) = request.into_parts();
        let Some(asking) = self.layer.ask(&parts) else {
            return Box::pin(inner.call(Request::from_parts(parts, body)));
        };
        let respond = self.layer.respond.clone();
        let is_outermost = parts.extensions.get::<RateLimits>().is_none();
        let limits = parts.extensions.get_or_insert_with(RateLimits::default).clone();
        Box::pin(async move {
            let mut response = match limits.refusal(asking.await) {
                None => inner.call(Request::from_parts(parts, body)).await?,
                Some((problem, error)) => {
                    let mut response = respond.respond(&problem);
                    if let Some(error) = error {
                        response.extensions_mut().insert(error);
                    }
                    response
                }
            };
            if is_outermost {
                limits.write(&mut response);
            }
            Ok(response)
        })
    }
}

/// The answers of the limits of a request, in the extensions of the request and of its response.
///
/// With the feature `axum` handlers take it as an argument. It is empty if no layer limited the request.
#[derive(Clone, Debug, Default)]
pub struct RateLimits(Arc<Mutex<Vec<ReplyWithOptions>>>);

impl RateLimits {
    fn lock(&self) -> MutexGuard<'_, Vec<ReplyWithOptions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the replies of all layers so far, the outermost first.
    pub fn replies(&self) -> Vec<Reply> {
        self.lock().iter().map(|each| each.reply().clone()).collect()
    }

    /// Returns the reply that a client has to follow: the one that denies longest, or else the one with the least left.
    #[doc = example!(tower)]
    /// let limiter = MemoryLimiter::new();
    /// let site = RateLimitLayer::new(&limiter, &Window::per("100/min")?, |_| Some("site"));
    /// let search = RateLimitLayer::new(&limiter, &Window::per("5/min")?, |_| Some("search"));
    /// let response = site.layer(search.layer(hello)).oneshot(Request::new(String::new())).await?;
    /// let limits: &RateLimits = response.extensions().get().expect("put there by the layers");
    /// assert_eq!(limits.tightest().map(|reply| reply.remaining), Some(4));
    #[doc = example!(end)]
    pub fn tightest(&self) -> Option<Reply> {
        tightest(self.lock().iter()).map(|each| each.reply().clone())
    }

    /// Adds an answer. Returns the problem that the request is refused with, if it is.
    fn refusal(&self, asked: Result<ReplyWithOptions, Error>) -> Option<(Problem, Option<Error>)> {
        match asked {
            Ok(reply) => {
                let is_allowed = reply.reply().is_allowed();
                let mut all = self.lock();
                all.push(reply);
                Problem::of(&all).filter(|_| !is_allowed).map(|problem| (problem, None))
            }
            Err(error) if error.is_transient() => Some((Problem::reduced_capacity(), Some(error))),
            Err(error) => Some((Problem::internal(), Some(error))),
        }
    }

    /// Writes the headers, and keeps the answers with the response.
    fn write<B>(&self, response: &mut Response<B>) {
        for (name, value) in headers(&self.lock()) {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(HeaderName::from_static(name), value);
            }
        }
        response.extensions_mut().insert(self.clone());
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

#[cfg(test)]
mod tests;
