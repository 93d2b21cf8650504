//! Enumerations whose values have names.

/// Defines an enumeration, `ALL`, `name`, `from_name` and `Display` from one table.
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $type:ident {
            $($(#[$doc:meta])* $value:ident = $name:literal,)*
        }
    ) => {
        $(#[$meta])*
        pub enum $type {
            $($(#[$doc])* $value,)*
        }

        impl $type {
            /// Every value.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// The name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            /// The value with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use named;
