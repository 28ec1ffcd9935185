//! polydraft-candle
