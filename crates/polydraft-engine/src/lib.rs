//! polydraft-engine
