//! Tests that need the reference data, `shared/data` next to the checkout.
//!
//! The test harness cannot skip a test while it runs, and a test without its data must not pass. So
//! [`macro@reference_test`] decides when the test is compiled. The build script looks for the
//! folder: after the folder was added, run `cargo clean -p walla_reference_test`.

use proc_macro::TokenStream;

/// Whether the reference data was there when this crate was built.
const HAS_DATA: bool = cfg!(reference_data);

/// As `#[test]`, and `#[ignore]` with the reason if the reference data is absent.
#[proc_macro_attribute]
pub fn reference_test(_arguments: TokenStream, test: TokenStream) -> TokenStream {
    let attributes = if HAS_DATA {
        "#[test]"
    } else {
        "#[test] #[ignore = \"needs the reference data, see CONTRIBUTING.md\"]"
    };
    let mut tokens: TokenStream = attributes.parse().unwrap_or_default();
    tokens.extend(test);
    tokens
}

/// Whether tests with [`macro@reference_test`] run: `true` or `false`.
#[proc_macro]
pub fn has_reference_data(_: TokenStream) -> TokenStream {
    HAS_DATA.to_string().parse().unwrap_or_default()
}
