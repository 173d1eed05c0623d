"""A provider of our own: an HTTP server that plays scripts in a provider's dialect, for tests and measurements."""

from peen.testing.upstream.server import Options as Options
from peen.testing.upstream.server import UpstreamServer as UpstreamServer
