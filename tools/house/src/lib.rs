//! Rules that all source of the workspace keeps: `tests/` checks them. There is nothing else here.
#![forbid(unsafe_code)]
