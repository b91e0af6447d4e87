//! A proxy that delays or drops what passes through it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

#[derive(Clone)]
pub struct Proxy {
    port: u16,
    delay: Arc<Mutex<Duration>>,
    drops: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (delay, drops, open) = (Arc::default(), Arc::default(), Arc::default());
        let proxy = Proxy { port, delay, drops, open };
        let own = proxy.clone();
        // Ends with the test program.
        spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                own.open.lock().unwrap().push(near.try_clone().unwrap());
                for (here, there, is_back) in [(&near, &far, false), (&far, &near, true)] {
                    let (here, there) = (here.try_clone().unwrap(), there.try_clone().unwrap());
                    there.set_nodelay(true).unwrap();
                    let own = own.clone();
                    spawn(move || own.pass(here, there, is_back));
                }
            }
        });
        proxy
    }

    fn pass(&self, mut here: TcpStream, mut there: TcpStream, is_back: bool) {
        let mut buffer = vec![0; 65536];
        while let Ok(size @ 1..) = here.read(&mut buffer) {
            if is_back {
                let delay = *self.delay.lock().unwrap();
                sleep(delay);
            }
            if self.drops.load(Relaxed) {
                continue;
            }
            if there.write_all(&buffer[..size]).is_err() {
                break;
            }
        }
        if !self.drops.load(Relaxed) {
            let _ = here.shutdown(Shutdown::Both);
            let _ = there.shutdown(Shutdown::Both);
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the delay of replies.
    pub fn delay(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }

    /// Sets whether everything is dropped.
    pub fn drops(&self, drops: bool) {
        self.drops.store(drops, Relaxed);
    }

    /// Ends all connections.
    pub fn hang_up(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
