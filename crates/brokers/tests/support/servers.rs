//! Real servers on free ports, which are killed when dropped. Tests are skipped where a server is not installed, except
//! with `WIRESPEED_BROKERS=all`.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{DEADLINE, wait};

/// A server process.
pub struct Server {
    program: PathBuf,
    first: Vec<String>,
    options: Vec<String>,
    pub directory: PathBuf,
    pub port: u16,
    process: Option<Child>,
}

/// Returns a free port that neither other tests nor outgoing connections use.
pub fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    loop {
        // Ephemeral ports of outgoing connections begin at 32,768 or above.
        let number = std::process::id() as usize * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + u16::try_from(number % 20_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(more).map(|place| place.join(program)).find(|file| file.is_file());
    assert!(
        found.is_some() || std::env::var("WIRESPEED_BROKERS").as_deref() != Ok("all"),
        "{program} is not installed"
    );
    found
}

impl Server {
    /// Prepares a server without starting it; `None` if it is not installed.
    pub fn new(program: &str, options: &[&str]) -> Option<Self> {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let Some(program) = find(program) else {
            eprintln!("skipped: {program} is not installed");
            return None;
        };
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("wirespeed-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Some(Self { program, first: Vec::new(), options, directory, port: free_port(), process: None })
    }

    /// Starts the server, and waits until it listens.
    pub fn start(&mut self) {
        let log = fs::File::create(self.directory.join("log")).unwrap();
        let is_redis = self.program.ends_with("redis-server");
        let at: &[&str] = if !self.first.is_empty() {
            &["--bind", "127.0.0.1", "--port"]
        } else if is_redis {
            &["--bind", "127.0.0.1", "--save", "", "--port"]
        } else {
            &["-a", "127.0.0.1", "-p"]
        };
        let mut command = Command::new(&self.program);
        command.current_dir(&self.directory).args(&self.first).args(at).arg(self.port.to_string()).args(&self.options);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(command.spawn().unwrap());
        wait(|| {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{}", self.log());
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Sets the first argument: Redis expects the name of its configuration file there.
    pub fn set_first_argument(&mut self, first: &str) {
        self.first = vec![first.to_owned()];
    }

    /// Replaces an option for the next start.
    pub fn set_option(&mut self, place: usize, value: &str) {
        self.options[place] = value.to_owned();
    }

    /// Sends a signal, by its name.
    pub fn signal(&self, name: &str) {
        let process = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &process]).status().unwrap().success());
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Sends a command to Redis, and returns the raw reply.
    pub fn command(&self, command: &str) -> String {
        let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        client.write_all(format!("{command}\r\nECHO <end>\r\n").as_bytes()).unwrap();
        let (mut said, mut some) = (Vec::new(), [0; 4096]);
        loop {
            let count = client.read(&mut some).unwrap_or(0);
            assert!(count > 0, "{command}: {}; {}", String::from_utf8_lossy(&said), self.log());
            said.extend_from_slice(&some[..count]);
            if let Some(answer) = said.strip_suffix(b"$5\r\n<end>\r\n") {
                return String::from_utf8(answer.to_vec()).unwrap();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
