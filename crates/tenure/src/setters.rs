//! Setters of the types that stores exchange. These are `#[non_exhaustive]`, so that a new field
//! breaks no store.

/// Gives a type a `with_...` method for each of the named fields.
macro_rules! setters {
    ($type:ident: $($setter:ident($field:ident: $kind:ty)),+ $(,)?) => {
        impl $type {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $setter(mut self, $field: $kind) -> Self {
                    self.$field = $field.into();
                    self
                }
            )+
        }
    };
}

pub(crate) use setters;
