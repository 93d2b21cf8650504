//! Encrypted connections to servers with trusted and other certificates.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use walla_remote::{OptionsError, RemoteEngine, RemoteOptions};
use walla_runtime::{AgentSpec, RemoteError, TimeLimit};

use crate::client::{add, ask, client, error, hear, options};
use crate::server::{Server, reply};

/// A server with a certificate for this name, and the certificate in PEM.
pub fn server(name: &str) -> (Server, String) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    (Server::start_with(|_| reply("Safe."), Some(acceptor)), cert.pem())
}

fn remote(server: &Server, roots: &[String]) -> RemoteOptions {
    let mut options = options(server);
    options.url = format!("https://localhost:{}/v1", server.port());
    options.root_certificates = roots.to_vec();
    options.retries.max_retries = 0;
    options
}

#[test]
fn only_trusted_certificates_of_the_right_name_are_accepted() {
    let (trusted, certificate) = server("localhost");
    let (elsewhere, other) = server("elsewhere.example");
    let heard = |options: RemoteOptions| {
        let client = client(options);
        let agent = add(&client, AgentSpec::new(""));
        hear(&client, ask(&client, agent, "?"))
    };
    assert_eq!(heard(remote(&trusted, std::slice::from_ref(&certificate))).text, "Safe.");
    let unknown = heard(remote(&trusted, std::slice::from_ref(&other)));
    assert!(matches!(error(&unknown), RemoteError::Connect(_)), "{unknown:?}");
    let wrong_name = heard(remote(&elsewhere, &[certificate, other]));
    assert!(matches!(error(&wrong_name), RemoteError::Connect(_)), "{wrong_name:?}");
    let plain = Server::start(|_| reply("Not encrypted."));
    let mut hasty = remote(&plain, &[]);
    hasty.limits.connect = Duration::from_millis(500);
    let no_tls = heard(hasty);
    // It waits for the rest of a request, which never comes.
    assert_eq!(*error(&no_tls), RemoteError::TimedOut(TimeLimit::Connect));
}

#[test]
fn unreadable_certificates_are_named() {
    for pem in ["", "no certificate", "-----BEGIN CERTIFICATE-----\n???\n-----END CERTIFICATE-----"]
    {
        let mut options = RemoteOptions::new("https://localhost/v1", "m");
        options.root_certificates.push(pem.into());
        let error = RemoteEngine::start(options).err();
        assert!(matches!(error, Some(OptionsError::Certificate(_))), "{pem:?}: {error:?}");
    }
}
