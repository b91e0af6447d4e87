//! The client against the tables in clients/spec, and against real servers.

#[cfg(feature = "fred")]
mod fred;
mod outages;
mod proxy;
mod renewal;
mod scripted;
mod server;
mod spec;
mod tls;
mod topologies;
