//! Redis, Valkey and what speaks like them: topics are channels, wildcards patterns that match more.
//!
//! One connection publishes, many messages at a time, and one is subscribed, as the protocol that all versions speak
//! wants it. Each is made again on its own when it breaks. Which server it is, Sentinels may say.

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

/// Bytes that are sent at once.
const BATCH: usize = 256 * 1024;

/// Channels in one command.
const CHANNELS: usize = 512;

/// How long a server may say nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long nothing is said before it is asked whether it is there.
const PING: Duration = Duration::from_secs(2);

const PUBLISHES: u8 = 1;
const RECEIVES: u8 = 2;

pub(crate) async fn serve(shared: &Shared) {
    if shared.address.kind == Kind::Cluster {
        return cluster::serve(shared).await;
    }
    let needed = if shared.receives() { PUBLISHES | RECEIVES } else { PUBLISHES };
    let link = Link { shared, up: Cell::new(0), needed, demoted: Notify::new() };
    let publish = again(&link, PUBLISHES, async |target| publish(&link, target).await);
    let tracker = RefCell::new(shared.tracker());
    let receive = async {
        if shared.receives() {
            again(&link, RECEIVES, async |target| {
                let error = receive(&link, target, &tracker).await;
                shared.lose_subscriptions(&mut tracker.borrow_mut());
                error
            })
            .await;
        }
    };
    future::join(publish, receive).await;
}

/// Why a connection is none.
enum Broken {
    /// The server, or the way to it.
    Redis(RedisError),
    /// It says nothing.
    Silent,
    /// It has closed it.
    Closed,
    /// It is a replica, and does not pass publications on to its primary.
    Replica,
    /// In words.
    Other(String),
}

impl From<RedisError> for Broken {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl std::fmt::Display for Broken {
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

/// Waits no longer than a server may say nothing.
async fn patiently<T, E: Into<Broken>>(answer: impl Future<Output = Result<T, E>>) -> Result<T, Broken> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let before = stalled();
        match tokio::time::timeout(PATIENCE, &mut answer).await {
            Ok(answered) => return answered.map_err(Into::into),
            Err(_) if stalled() != before => {} // it may be there, and nobody has read
            Err(_) => return Err(Broken::Silent),
        }
    }
}

/// Both connections together.
struct Link<'a> {
    shared: &'a Shared,
    up: Cell<u8>,
    needed: u8,
    /// The server has become a replica.
    demoted: Notify,
}

impl Link<'_> {
    fn set_up(&self, which: u8) {
        self.up.set(self.up.get() | which);
        if self.up.get() == self.needed {
            self.shared.set_connected();
        }
    }

    fn set_down(&self, which: u8, reason: &Broken) {
        if matches!(reason, Broken::Replica) && self.up.get() & PUBLISHES != 0 {
            self.demoted.notify_one(); // the subscribed connection moves to the new primary as well
        }
        self.up.set(self.up.get() & !which);
        self.shared.set_disconnected(&reason.to_string());
        // Whoever publishes and has nothing to do asks the server before it is said again that there is a connection.
        self.shared.outgoing.notify_one();
    }
}

/// Connects for ever; the pauses are short again after a connection that came about.
async fn again(link: &Link<'_>, which: u8, mut serve: impl AsyncFnMut(&mut Target) -> Broken) {
    let address = &link.shared.address;
    let mut attempt = 0;
    // A target keeps what it has read: it is made again once the files have changed.
    let mut made: Option<(Stamp, Target)> = None;
    loop {
        let before = link.up.get() & which;
        let files = Stamp::of(address.files());
        made = made.filter(|(read, _)| *read == files);
        let reason = match &mut made {
            Some((_, target)) => serve(target).await,
            None => match Target::new(address) {
                Ok(new) => serve(&mut made.insert((files, new)).1).await,
                Err(error) => error,
            },
        };
        attempt = if before == 0 && link.up.get() & which == 0 { attempt + 1 } else { 0 };
        link.set_down(which, &reason);
        tokio::time::sleep(backoff::delay(attempt)).await;
    }
}

/// Which server.
enum Target {
    One(Box<Client>),
    /// One client for each set of credentials, tried in this order.
    Sentinel(Vec<SentinelClient>),
}

impl Target {
    fn new(address: &Address) -> Result<Self, Broken> {
        let settings = settings(address)?;
        if address.kind == Kind::Sentinel {
            let logins = sentinel_logins(address);
            let clients = logins.into_iter().map(|login| sentinel(address, &settings, login));
            return Ok(Self::Sentinel(clients.collect::<Result<_, _>>()?));
        }
        let Some(server) = addresses(address).next() else { return Err(Broken::Other("no server".into())) };
        let info = server.into_connection_info()?.set_redis_settings(settings);
        Ok(Self::One(Box::new(match certificates(address)? {
            Some(certificates) => Client::build_with_tls(info, certificates)?,
            None => Client::open(info)?,
        })))
    }

    async fn client(&mut self) -> Result<Client, Broken> {
        match self {
            Self::One(client) => Ok((**client).clone()),
            Self::Sentinel(clients) => {
                let mut first = None;
                for client in clients {
                    match patiently(client.async_get_client()).await {
                        Ok(found) => return Ok(found),
                        // A Sentinel without a password rejects any password, which says nothing about the cause.
                        Err(broken) => first = first.filter(|broken| !needs_password(broken)).or(Some(broken)),
                    }
                }
                Err(first.unwrap_or(Broken::Closed))
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

fn settings(address: &Address) -> Result<RedisConnectionInfo, Broken> {
    let database = address.database().map_err(|error| Broken::Other(error.to_string()))?;
    let mut settings = RedisConnectionInfo::default().set_db(database);
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password);
    }
    Ok(settings)
}

/// Reads the files. They are small, and this thread serves nothing else.
fn certificates(address: &Address) -> Result<Option<TlsCertificates>, Broken> {
    if address.files().next().is_none() {
        return Ok(None);
    }
    let Files { ca, identity } = address.read_files().map_err(Broken::Other)?;
    let client_tls = identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok(Some(TlsCertificates { client_tls, root_cert: ca }))
}

/// Whether the server asks for a password.
fn needs_password(broken: &Broken) -> bool {
    matches!(broken, Broken::Redis(error) if error.code() == Some("NOAUTH"))
}

/// A user and a password.
type Login<'a> = (Option<&'a str>, Option<&'a str>);

/// Credentials for Sentinels: those of the URL, if it gives any. Else none, so that no Sentinel gets a password that it does not
/// ask for, and then the password of the servers, which many installations use for both.
fn sentinel_logins(address: &Address) -> Vec<Login<'_>> {
    let none = (None, None);
    match &address.sentinel_password {
        Some(password) => vec![(address.sentinel_user.as_deref(), Some(password))],
        None if address.password.is_none() => vec![none],
        None => vec![none, (None, address.password.as_deref())],
    }
}

/// `settings`: credentials of the servers; `login`: those of the Sentinels.
fn sentinel(address: &Address, settings: &RedisConnectionInfo, login: Login<'_>) -> Result<SentinelClient, Broken> {
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

// ---- what leaves ----

async fn publish(link: &Link<'_>, target: &mut Target) -> Broken {
    match try_publish(link, target).await {
        Ok(never) => never,
        Err(broken) => broken,
    }
}

async fn try_publish(link: &Link<'_>, target: &mut Target) -> Result<Broken, Broken> {
    let shared = link.shared;
    // Who waits for an answer is patient: the library does not know that this thread was held up.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(None);
    let client = target.client().await?;
    let mut connection = patiently(client.get_multiplexed_async_connection_with_config(&config)).await?;
    check_role(&mut connection).await?;
    let mut checked = Instant::now();
    link.set_up(PUBLISHES);
    let mut in_flight = shared.in_flight();
    loop {
        // If the other connection broke, this one may be broken as well, and messages taken now would be in doubt. And a
        // primary may become a replica while messages are published.
        if !shared.is_connected() || checked.elapsed() >= PING {
            check_role(&mut connection).await?;
            checked = Instant::now();
        }
        let items = in_flight.take(BATCH);
        if items.is_empty() {
            let notified = std::pin::pin!(shared.outgoing.notified());
            let _ = tokio::time::timeout(PING, notified).await; // in both cases the loop continues
            continue;
        }
        let mut commands = redis::pipe();
        let mut counts = Vec::new();
        for parcel in batch::pack(items, batch::MOST) {
            commands.cmd("PUBLISH").arg(shared.name(&parcel.to)).arg(&parcel.bytes[..]);
            counts.push(parcel.count);
        }
        let answers: Vec<Answer> = patiently(commands.ignore_errors().query_async(&mut connection)).await?;
        for (count, answer) in counts.into_iter().zip(answers) {
            match fate(answer)? {
                None => in_flight.settle(count),
                Some(refusal) => {
                    in_flight.refuse(count);
                    shared.set_reason(&refusal);
                }
            }
        }
    }
}

/// What a server says of something that is published: how many have got it.
type Answer = RedisResult<i64>;

/// Why the server has refused something, in words; `None`: it has it. Fails if that is no answer to it.
fn fate(answer: Answer) -> Result<Option<String>, Broken> {
    match answer {
        Ok(_) => Ok(None),
        Err(error) if is_answer(&error) => Ok(Some(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Whether an error is an answer of the server, and not of the connection.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// Asks a server whether it is alive; an error reply counts as alive. A server that cannot save its data replies MISCONF, and
/// one whose ACL denies the command replies NOPERM. A server that wants another password takes no messages.
async fn check<T>(answer: impl Future<Output = RedisResult<T>>) -> Result<Option<T>, Broken> {
    match patiently(answer).await {
        Ok(answer) => Ok(Some(answer)),
        Err(Broken::Redis(error)) if is_answer(&error) && !matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
            Ok(None)
        }
        Err(broken) => Err(broken),
    }
}

/// Checks that the server is alive, and not a replica as far as it says.
async fn check_role(connection: &mut MultiplexedConnection) -> Result<(), Broken> {
    match check(redis::cmd("ROLE").query_async(connection)).await? {
        Some(Value::Array(role)) if role.first().is_some_and(is_replica) => Err(Broken::Replica),
        _ => Ok(()),
    }
}

fn is_replica(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"slave" || role == b"replica")
}
