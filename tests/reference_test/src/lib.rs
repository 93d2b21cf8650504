//! Tests that need the reference data, `shared/data` next to the checkout, an NVIDIA GPU, or a
//! Vulkan driver.
//!
//! The test harness cannot skip a test while it runs, and a test without its data or GPU must not
//! pass. So [`macro@reference_test`], [`macro@gpu_test`] and [`macro@vulkan_test`] decide when the
//! test is compiled. The build script looks for the folder, the GPU and the driver: after one was
//! added, run `cargo clean -p walla_reference_test`.

use proc_macro::TokenStream;

/// Whether the reference data was there when this crate was built.
const HAS_DATA: bool = cfg!(reference_data);

/// As `#[test]`, and `#[ignore]` with the reason if the reference data is absent.
#[proc_macro_attribute]
pub fn reference_test(_arguments: TokenStream, test: TokenStream) -> TokenStream {
    test_if(HAS_DATA, "needs the reference data, see CONTRIBUTING.md", test)
}

/// As `#[test]`, and `#[ignore]` with the reason if there is no GPU.
#[proc_macro_attribute]
pub fn gpu_test(_arguments: TokenStream, test: TokenStream) -> TokenStream {
    test_if(cfg!(gpu), "needs a GPU, see CONTRIBUTING.md", test)
}

/// As `#[test]`, and `#[ignore]` with the reason if there is no Vulkan driver.
#[proc_macro_attribute]
pub fn vulkan_test(_arguments: TokenStream, test: TokenStream) -> TokenStream {
    test_if(cfg!(vulkan), "needs a Vulkan driver, see CONTRIBUTING.md", test)
}

fn test_if(has_needs: bool, reason: &str, test: TokenStream) -> TokenStream {
    let ignore = if has_needs { "" } else { &format!("#[ignore = {reason:?}]") };
    let mut tokens: TokenStream = format!("#[test] {ignore}").parse().unwrap_or_default();
    tokens.extend(test);
    tokens
}

/// Whether tests with [`macro@reference_test`] run: `true` or `false`.
#[proc_macro]
pub fn has_reference_data(_: TokenStream) -> TokenStream {
    HAS_DATA.to_string().parse().unwrap_or_default()
}
