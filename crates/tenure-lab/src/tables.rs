//! Types that are tables: what they have in common is written by a macro, and a row says the rest.

/// An enum whose variants are known by their words. `words` names one.
macro_rules! worded {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $words:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $(#[doc = $words] $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The words for it.
            pub const fn words(self) -> &'static str {
                match self { $(Self::$variant => $words,)* }
            }
        }
    };
}

/// A struct of settings, with a constant that has the value in each row.
macro_rules! settings {
    ($(#[$doc:meta])* $name:ident :: $base:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $value:expr,)* }) => {
        $(#[$doc])*
        #[allow(clippy::struct_excessive_bools, reason = "a list of independent settings")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)* }

        impl $name {
            pub(crate) const $base: Self = Self { $($field: $value,)* };
        }
    };
}

pub(crate) use {settings, worded};
