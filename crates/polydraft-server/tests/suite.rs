//! All tests of this crate as one program: linking one is faster than linking ten.

mod agents;
mod alternatives;
mod common;
mod dialects;
mod drafting;
mod native;
mod options;
mod pages;
mod parameters;
mod progress;
mod refusals;
mod responses;
mod roles;
mod seeds;
mod serving;
mod tools;
mod unread;
