//! Registries of algorithms that users name, with their settings.
//!
//! Every rule, verifier and policy is one file and one line in a registry. The line adds a variant
//! to an enum that stores the settings, so that records contain them. Names, default settings and
//! the list of all entries are generated from these lines, and the conformance run iterates over
//! that list.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Settings of an algorithm without settings, built by `Default`.
pub struct NoSettings<A>(PhantomData<fn() -> A>);

impl<A> Clone for NoSettings<A> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<A> Default for NoSettings<A> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A> PartialEq for NoSettings<A> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<A> fmt::Debug for NoSettings<A> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("NoSettings")
    }
}

/// The empty JSON object.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

impl<A> Serialize for NoSettings<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Empty {}.serialize(serializer)
    }
}

impl<'de, A> Deserialize<'de> for NoSettings<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Empty::deserialize(deserializer).map(|Empty {}| Self::default())
    }
}

/// Generates the enum of a registry. A line is `Variant(Settings) = "name",`; the settings
/// implement `Default`, serde's traits, and the given settings trait. `nesting Type as Variant =
/// "name"` adds a variant that holds an entry of another registry.
#[doc(hidden)]
#[macro_export]
macro_rules! registry {
    (
        $(#[$enum_doc:meta])*
        $vis:vis enum $kind:ident, tag $tag:literal, settings $settings_trait:path
        $(, nesting $nested:ty as $(#[$nest_doc:meta])* $nest:ident = $nest_name:literal)?;
        $($(#[$doc:meta])* $variant:ident($settings:ty) = $name:literal,)*
    ) => {
        $(#[$enum_doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = $tag)]
        $vis enum $kind {
            $($(#[$doc])* #[serde(rename = $name)] $variant($settings),)*
            $($(#[$nest_doc])* #[serde(rename = $nest_name)] $nest($nested),)?
        }

        impl $kind {
            /// The names that users type.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Returns the entry of that name, with its default settings.
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant(Default::default())),)*
                    _ => None,
                }
            }
        }

        $crate::registry!(@settings $kind, $settings_trait; $($variant = $name,)*
            $(; $nested, $nest)?);
    };
    (@settings $kind:ident, $settings_trait:path; $($variant:ident = $name:literal,)*) => {
        impl $kind {
            /// The name that users type.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }

            /// The settings as a trait object.
            #[allow(dead_code, reason = "not every registry needs all of it")]
            pub(crate) fn settings(&self) -> &dyn $settings_trait {
                match self { $(Self::$variant(settings) => settings,)* }
            }

            /// The settings, mutable.
            #[allow(dead_code, reason = "not every registry needs all of it")]
            pub(crate) fn settings_mut(&mut self) -> &mut dyn $settings_trait {
                match self { $(Self::$variant(settings) => settings,)* }
            }
        }
    };
    (@settings $kind:ident, $settings_trait:path; $($variant:ident = $name:literal,)*
        ; $nested:ty, $nest:ident) => {
        impl $kind {
            /// The settings as a trait object, with the name that users type; or the nested entry.
            pub(crate) fn settings(
                &self,
            ) -> std::result::Result<(&'static str, &dyn $settings_trait), &$nested> {
                match self {
                    $(Self::$variant(settings) => Ok(($name, settings)),)*
                    Self::$nest(nested) => Err(nested),
                }
            }
        }
    };
}
