//! Native rate limiting for Redis and Valkey.

mod redis;
