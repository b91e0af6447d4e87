"""What the adapters for HTTP share: headers, problem details, the addresses of clients, and the limits of a request."""
