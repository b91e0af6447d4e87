//! The client against the tables in clients/spec, and against real servers.

mod scripted;

mod spec;
