//! NATS credentials that sign a challenge, with a real server. Skipped where the server is not installed.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use nkeys::KeyPair;
use support::nodes::broker_config;
use support::servers::Server;
use support::{text, topic, wait};
use wirespeed_brokers::Publisher;
use wirespeed_brokers::engine::broker::State;

/// Encodes base64url without padding (RFC 4648, section 5).
fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let group = |chunk: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        (0..=chunk.len()).map(move |at| char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize])).collect::<Vec<_>>()
    };
    bytes.chunks(3).flat_map(group).collect()
}

/// Returns a NATS JWT, version 2.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: &str) -> String {
    let header = base64url(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let claims = format!(
        r#"{{"jti":"x","iat":1700000000,"iss":"{}","name":"x","sub":"{}","nats":{nats}}}"#,
        issuer.public_key(),
        subject.public_key()
    );
    let signed = format!("{header}.{}", base64url(claims.as_bytes()));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", base64url(&signature))
}

fn start(config: &str) -> Option<Server> {
    let mut server = Server::new("nats-server", &["-c", "nats.conf"])?;
    fs::write(server.directory.join("nats.conf"), config).unwrap();
    server.start();
    Some(server)
}

fn write(server: &Server, name: &str, text: &str) -> PathBuf {
    let path = server.directory.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// The server refuses the credentials of the file until the file is replaced.
fn connects_with_the_credentials_of_a_file(server: &Server, option: &str, path: &Path, right: &str) {
    let url = format!("nats://127.0.0.1:{}?{option}={}", server.port, path.display());
    let publisher = Publisher::new(&broker_config(&url)).unwrap();
    wait(|| publisher.status().reason.is_some());
    let reason = publisher.status().reason.unwrap();
    assert!(reason.to_lowercase().contains("authorization"), "{reason}");
    fs::write(path, right).unwrap();
    wait(|| publisher.status().state == State::Connected);
    publisher.publish(Some(&topic("a")), text("x")).unwrap();
    wait(|| publisher.status().published == 1);
}

#[test]
fn nats_with_nkeys() {
    let user = KeyPair::new_user();
    let config = format!("authorization {{ users: [{{ nkey: {} }}] }}\n", user.public_key());
    let Some(server) = start(&config) else { return };
    let path = write(&server, "user.nk", &KeyPair::new_user().seed().unwrap());
    connects_with_the_credentials_of_a_file(&server, "nkey", &path, &user.seed().unwrap());
}

#[test]
fn nats_with_jwts() {
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let limits = r#"{"subs":-1,"conn":-1,"leaf":-1,"imports":-1,"exports":-1,"data":-1,"payload":-1,"wildcards":true}"#;
    let operator_jwt = jwt(&operator, &operator, r#"{"type":"operator","version":2}"#);
    let account_jwt = jwt(&operator, &account, &format!(r#"{{"limits":{limits},"type":"account","version":2}}"#));
    let config = format!(
        "operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {}: {account_jwt} }}\n",
        account.public_key()
    );
    let Some(server) = start(&config) else { return };
    let creds = |issuer: &KeyPair, user: &KeyPair| {
        let jwt = jwt(issuer, user, r#"{"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}"#);
        let seed = user.seed().unwrap();
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    };
    let path = write(&server, "user.creds", &creds(&KeyPair::new_account(), &stranger));
    connects_with_the_credentials_of_a_file(&server, "creds", &path, &creds(&account, &user));
}
