//! The sandbox's own certificate authority, kept in its state directory, and a server certificate made anew at every start. Clients
//! trust the authority, so a restart changes nothing for them.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::access::{AccessError, write_private};

/// What a server and its clients need.
pub struct Identity {
    /// The authority's certificate, PEM.
    pub authority: String,
    /// For the listener; speaks HTTP/2 and HTTP/1.1.
    pub server: Arc<ServerConfig>,
}

/// Reads the authority in `dir`, or makes it, and issues a certificate for the address.
pub fn prepare(dir: &Path, address: IpAddr) -> Result<Identity, AccessError> {
    let key_path = dir.join("ca.key");
    let certificate_path = dir.join("ca.crt");
    let key = match std::fs::read_to_string(&key_path) {
        Ok(pem) => KeyPair::from_pem(&pem).map_err(|_| AccessError::BadCertificate { path: key_path.clone() })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = KeyPair::generate()?;
            write_private(&key_path, key.serialize_pem().as_bytes())?;
            // A certificate of another key would not be worth anything.
            let _ = std::fs::remove_file(&certificate_path);
            key
        }
        Err(source) => return Err(AccessError::File { verb: "read", path: key_path, source }),
    };
    let authority = match std::fs::read_to_string(&certificate_path) {
        Ok(pem) => pem,
        Err(_) => {
            let pem = authority_parameters().self_signed(&key)?.pem();
            write_private(&certificate_path, pem.as_bytes())?;
            pem
        }
    };
    let issuer = Issuer::new(authority_parameters(), key);
    let server = server_config(&issuer, address)?;
    Ok(Identity { authority, server: Arc::new(server) })
}

fn authority_parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = named("cellplane-sandbox-ca");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    parameters
}

fn named(name: &str) -> DistinguishedName {
    let mut out = DistinguishedName::new();
    out.push(DnType::CommonName, name);
    out
}

fn server_config(issuer: &Issuer<'_, KeyPair>, address: IpAddr) -> Result<ServerConfig, AccessError> {
    let mut names: Vec<String> =
        ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
            .map(str::to_owned)
            .into();
    let own = address.to_string();
    if !names.contains(&own) {
        names.push(own);
    }
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name = named("cellplane-sandbox");
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = parameters.signed_by(&key, issuer)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The kubeconfig for this server: absolute URL, authority and token inside.
pub fn kubeconfig(server: &str, authority: &str, token: &str) -> String {
    use base64::Engine;
    let data = base64::engine::general_purpose::STANDARD.encode(authority);
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: cellplane-sandbox\nclusters:\n- name: cellplane-sandbox\n  cluster:\n    \
         server: {server}\n    certificate-authority-data: {data}\ncontexts:\n- name: cellplane-sandbox\n  context:\n    \
         cluster: cellplane-sandbox\n    user: cellplane-admin\n    namespace: default\nusers:\n- name: cellplane-admin\n  user:\n    \
         token: {token}\n"
    )
}
