//! polydraft
