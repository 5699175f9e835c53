//! Redis, Valkey and compatible servers: topics are channels, and wildcards are globs, which match more topics.
//!
//! One connection publishes pipelines of messages, and the other is subscribed, as RESP2 requires. Each reconnects on
//! its own. Sentinels may name the server.

mod cluster;
pub(crate) mod glob;
mod receiving;

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use futures_util::future;
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult, TlsCertificates, TlsMode, Value,
};
use tokio::sync::Notify;
use wirespeed_engine::driver::tls::Stamp;

use self::receiving::receive;
use crate::address::{Address, Files, Kind};
use crate::backoff;
use crate::batch;
use crate::client::Shared;
use crate::stall_clock::stalled;

/// The number of bytes that are sent in one pipeline.
const BATCH_BYTES: usize = 256 * 1024;

/// The maximum number of channels in one command.
const CHANNELS_PER_COMMAND: usize = 512;

/// How long a server may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The idle time after which the client pings the server.
const PING: Duration = Duration::from_secs(2);

const PUBLISHES: u8 = 1;
const RECEIVES: u8 = 2;

pub(crate) async fn serve(shared: &Shared) {
    if shared.address.kind == Kind::Cluster {
        return cluster::serve(shared).await;
    }
    let needed = if shared.receives() { PUBLISHES | RECEIVES } else { PUBLISHES };
    let connections = Connections { shared, up: Cell::new(0), needed, demoted: Notify::new() };
    let publish = reconnect_loop(&connections, PUBLISHES, async |target| publish(&connections, target).await);
    let tracker = RefCell::new(shared.tracker());
    let receive = async {
        if shared.receives() {
            reconnect_loop(&connections, RECEIVES, async |target| {
                let error = receive(&connections, target, &tracker).await;
                shared.lose_subscriptions(&mut tracker.borrow_mut());
                error
            })
            .await;
        }
    };
    future::join(publish, receive).await;
}

/// Why a connection failed.
enum ConnectionError {
    /// An error of the server or of the connection.
    Redis(RedisError),
    /// The server did not reply in time.
    Silent,
    /// The server closed the connection.
    Closed,
    /// The server is a replica, and does not forward publications to its primary.
    Replica,
    /// Any other reason.
    Other(String),
}

impl From<RedisError> for ConnectionError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl std::fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Redis(error) => write!(f, "{error}"),
            Self::Silent => f.write_str("the server does not answer"),
            Self::Closed => f.write_str("the server has closed the connection"),
            Self::Replica => {
                f.write_str("the server is a replica, where nothing may be published: connect to its primary")
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Waits for a reply, at most [`REPLY_TIMEOUT`] plus the time in which this thread was blocked.
async fn with_timeout<T, E: Into<ConnectionError>>(
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, ConnectionError> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let before = stalled();
        match tokio::time::timeout(REPLY_TIMEOUT, &mut answer).await {
            Ok(answered) => return answered.map_err(Into::into),
            Err(_) if stalled() != before => {} // the reply may have arrived while this thread was blocked
            Err(_) => return Err(ConnectionError::Silent),
        }
    }
}

/// The publishing and the subscribed connection.
struct Connections<'a> {
    shared: &'a Shared,
    up: Cell<u8>,
    needed: u8,
    /// The server has become a replica.
    demoted: Notify,
}

impl Connections<'_> {
    fn mark_up(&self, which: u8) {
        self.up.set(self.up.get() | which);
        if self.up.get() == self.needed {
            self.shared.set_connected();
        }
    }

    fn mark_down(&self, which: u8, reason: &ConnectionError) {
        if matches!(reason, ConnectionError::Replica) && self.up.get() & PUBLISHES != 0 {
            self.demoted.notify_one(); // the subscribed connection has to move to the new primary as well
        }
        self.up.set(self.up.get() & !which);
        self.shared.set_disconnected(&reason.to_string());
        // An idle publishing connection checks the server before the client is reported as connected again.
        self.shared.outgoing.notify_one();
    }
}

/// Reconnects forever. The pauses start short again after a successful connection.
async fn reconnect_loop(
    connections: &Connections<'_>,
    which: u8,
    mut serve: impl AsyncFnMut(&mut Target) -> ConnectionError,
) {
    let address = &connections.shared.address;
    let mut attempt = 0;
    // A target keeps the TLS files that it has read, so it is replaced when the files change.
    let mut made: Option<(Stamp, Target)> = None;
    loop {
        let before = connections.up.get() & which;
        let files = Stamp::of(address.files());
        made = made.filter(|(read, _)| *read == files);
        let reason = match &mut made {
            Some((_, target)) => serve(target).await,
            None => match Target::new(address) {
                Ok(new) => serve(&mut made.insert((files, new)).1).await,
                Err(error) => error,
            },
        };
        attempt = if before == 0 && connections.up.get() & which == 0 { attempt + 1 } else { 0 };
        connections.mark_down(which, &reason);
        tokio::time::sleep(backoff::delay(attempt)).await;
    }
}

/// The server to connect to.
enum Target {
    One(Box<Client>),
    /// One client for each set of credentials, tried in this order.
    Sentinel(Vec<SentinelClient>),
}

impl Target {
    fn new(address: &Address) -> Result<Self, ConnectionError> {
        let settings = settings(address)?;
        if address.kind == Kind::Sentinel {
            let logins = sentinel_logins(address);
            let clients = logins.into_iter().map(|login| sentinel(address, &settings, login));
            return Ok(Self::Sentinel(clients.collect::<Result<_, _>>()?));
        }
        let Some(server) = addresses(address).next() else { return Err(ConnectionError::Other("no server".into())) };
        let info = server.into_connection_info()?.set_redis_settings(settings);
        Ok(Self::One(Box::new(match certificates(address)? {
            Some(certificates) => Client::build_with_tls(info, certificates)?,
            None => Client::open(info)?,
        })))
    }

    async fn client(&mut self) -> Result<Client, ConnectionError> {
        match self {
            Self::One(client) => Ok((**client).clone()),
            Self::Sentinel(clients) => {
                let mut first = None;
                for client in clients {
                    match with_timeout(client.async_get_client()).await {
                        Ok(found) => return Ok(found),
                        // A Sentinel without a password rejects any password, which says nothing about the cause.
                        Err(failure) => first = first.filter(|failure| !needs_password(failure)).or(Some(failure)),
                    }
                }
                Err(first.unwrap_or(ConnectionError::Closed))
            }
        }
    }
}

fn addresses(address: &Address) -> impl Iterator<Item = ConnectionAddr> {
    address.servers.iter().map(|server| match address.tls {
        false => ConnectionAddr::Tcp(server.host.clone(), server.port),
        true => {
            let host = server.host.clone();
            ConnectionAddr::TcpTls { host, port: server.port, insecure: false, tls_params: None }
        }
    })
}

fn settings(address: &Address) -> Result<RedisConnectionInfo, ConnectionError> {
    let database = address.database().map_err(|error| ConnectionError::Other(error.to_string()))?;
    let mut settings = RedisConnectionInfo::default().set_db(database);
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password);
    }
    Ok(settings)
}

/// Reads the TLS files. They are small, and blocking this thread delays nothing else.
fn certificates(address: &Address) -> Result<Option<TlsCertificates>, ConnectionError> {
    if address.files().next().is_none() {
        return Ok(None);
    }
    let Files { ca, identity } = address.read_files().map_err(ConnectionError::Other)?;
    let client_tls = identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok(Some(TlsCertificates { client_tls, root_cert: ca }))
}

/// Returns whether the server requires a password.
fn needs_password(failure: &ConnectionError) -> bool {
    matches!(failure, ConnectionError::Redis(error) if error.code() == Some("NOAUTH"))
}

/// A user and a password.
type Login<'a> = (Option<&'a str>, Option<&'a str>);

/// Returns the credentials to try at Sentinels: those of the URL, if given. Otherwise none first, so that no Sentinel
/// receives a password it does not require, and then the servers' password, which many installations use for both.
fn sentinel_logins(address: &Address) -> Vec<Login<'_>> {
    let none = (None, None);
    match &address.sentinel_password {
        Some(password) => vec![(address.sentinel_user.as_deref(), Some(password))],
        None if address.password.is_none() => vec![none],
        None => vec![none, (None, address.password.as_deref())],
    }
}

/// `settings`: the credentials of the servers; `login`: those of the Sentinels.
fn sentinel(
    address: &Address,
    settings: &RedisConnectionInfo,
    login: Login<'_>,
) -> Result<SentinelClient, ConnectionError> {
    let mut builder = SentinelClientBuilder::new(addresses(address), &address.path, SentinelServerType::Master)?;
    if let (user, Some(password)) = login {
        builder = builder.set_client_to_sentinel_password(password);
        if let Some(user) = user {
            builder = builder.set_client_to_sentinel_username(user);
        }
    }
    if let Some(user) = settings.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = settings.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if address.tls {
        builder =
            builder.set_client_to_redis_tls_mode(TlsMode::Secure).set_client_to_sentinel_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates(address)? {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
    }
    Ok(builder.build()?)
}

// ---- outgoing messages ----

async fn publish(connections: &Connections<'_>, target: &mut Target) -> ConnectionError {
    match try_publish(connections, target).await {
        Ok(never) => never,
        Err(failure) => failure,
    }
}

async fn try_publish(connections: &Connections<'_>, target: &mut Target) -> Result<ConnectionError, ConnectionError> {
    let shared = connections.shared;
    // `with_timeout` limits the time instead: the library cannot exclude the time in which this thread was blocked.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(REPLY_TIMEOUT)).set_response_timeout(None);
    let client = target.client().await?;
    let mut connection = with_timeout(client.get_multiplexed_async_connection_with_config(&config)).await?;
    check_role(&mut connection).await?;
    let mut checked = Instant::now();
    connections.mark_up(PUBLISHES);
    let mut in_flight = shared.in_flight();
    loop {
        // If the other connection broke, this one may be broken as well, and messages taken now would become
        // unconfirmed. A primary may also become a replica while messages are published.
        if !shared.is_connected() || checked.elapsed() >= PING {
            check_role(&mut connection).await?;
            checked = Instant::now();
        }
        let items = in_flight.take(BATCH_BYTES);
        if items.is_empty() {
            let notified = std::pin::pin!(shared.outgoing.notified());
            let _ = tokio::time::timeout(PING, notified).await; // in both cases the loop continues
            continue;
        }
        let mut commands = redis::pipe();
        let mut counts = Vec::new();
        for batch in batch::pack(items, batch::MAX_BATCH_BYTES) {
            commands.cmd("PUBLISH").arg(shared.name(&batch.to)).arg(&batch.bytes[..]);
            counts.push(batch.count);
        }
        let answers: Vec<Answer> = with_timeout(commands.ignore_errors().query_async(&mut connection)).await?;
        for (count, answer) in counts.into_iter().zip(answers) {
            match publish_result(answer)? {
                None => in_flight.settle(count),
                Some(refusal) => {
                    in_flight.refuse(count);
                    shared.set_reason(&refusal);
                }
            }
        }
    }
}

/// The server's reply to a publication: the number of receivers.
type Answer = RedisResult<i64>;

/// Returns why the server refused a publication, or `None` if it accepted it. Fails if the connection failed.
fn publish_result(answer: Answer) -> Result<Option<String>, ConnectionError> {
    match answer {
        Ok(_) => Ok(None),
        Err(error) if is_answer(&error) => Ok(Some(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether an error is a reply of the server, and not a failure of the connection.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// Checks that a server is alive; an error reply counts as alive. A server that cannot save its data replies MISCONF,
/// and one whose ACL denies the command replies NOPERM. A server that requires another password accepts no messages, so
/// it counts as failed.
async fn check<T>(answer: impl Future<Output = RedisResult<T>>) -> Result<Option<T>, ConnectionError> {
    match with_timeout(answer).await {
        Ok(answer) => Ok(Some(answer)),
        Err(ConnectionError::Redis(error))
            if is_answer(&error) && !matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) =>
        {
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// Checks that the server is alive, and not a replica as far as it replies to `ROLE`.
async fn check_role(connection: &mut MultiplexedConnection) -> Result<(), ConnectionError> {
    match check(redis::cmd("ROLE").query_async(connection)).await? {
        Some(Value::Array(role)) if role.first().is_some_and(is_replica) => Err(ConnectionError::Replica),
        _ => Ok(()),
    }
}

fn is_replica(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"slave" || role == b"replica")
}
