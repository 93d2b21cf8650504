//! TLS: rustls with ring, and the verifier of the platform.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use crate::options::OptionsError;

/// The settings of TLS connections. No setting of the process is used or changed.
pub(crate) fn config(root_certificates: &[String]) -> Result<ClientConfig, OptionsError> {
    let tls = |error: rustls::Error| OptionsError::Tls(error.to_string());
    let provider = Arc::new(ring::default_provider());
    let mut roots = Vec::new();
    for pem in root_certificates {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.push(certificate.map_err(|error| OptionsError::Certificate(error.to_string()))?);
        }
        if roots.len() == before {
            return Err(OptionsError::Certificate("it contains no PEM section".into()));
        }
    }
    let verifier = if roots.is_empty() {
        Verifier::new(Arc::clone(&provider)).map_err(tls)?
    } else {
        with_roots(roots, Arc::clone(&provider)).map_err(tls)?
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Settings without any trusted certificate, for plain HTTP.
pub(crate) fn none() -> Result<ClientConfig, OptionsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| OptionsError::Tls(error.to_string()))?;
    let nobody = RootCertStore::empty();
    Ok(config.with_root_certificates(nobody).with_no_client_auth())
}

#[cfg(any(all(unix, not(target_os = "android")), target_os = "windows"))]
fn with_roots(
    roots: Vec<CertificateDer<'static>>,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Verifier, rustls::Error> {
    Verifier::new_with_extra_roots(roots, provider)
}

#[cfg(not(any(all(unix, not(target_os = "android")), target_os = "windows")))]
fn with_roots(
    _roots: Vec<CertificateDer<'static>>,
    _provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Verifier, rustls::Error> {
    Err(rustls::Error::General("further root certificates are not supported on this system".into()))
}
