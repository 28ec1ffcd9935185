//! A package of nothing: it exists to be vendored.
