PRAGMA application_id = 1246713164;
BEGIN TRANSACTION;
CREATE TABLE assets (
	id INTEGER NOT NULL, 
	content VARCHAR, 
	PRIMARY KEY (id), 
	UNIQUE (content)
);
INSERT INTO "assets" VALUES(1,'{"name":"server","source":"a test","lifespan_s":100000000.0,"cpu":{"g":300000.0,"low_g":200000.0,"high_g":900000.0},"memory":{"g":0.0,"low_g":0.0,"high_g":0.0},"gpu":{"g":0.0,"low_g":0.0,"high_g":0.0}}');
CREATE TABLE budget_scopes (
	"key" VARCHAR NOT NULL, 
	since_s DOUBLE NOT NULL, 
	seen_s DOUBLE NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE TABLE budget_slots (
	"key" VARCHAR NOT NULL, 
	start_s DOUBLE NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY ("key", start_s)
)
 WITHOUT ROWID

;
CREATE TABLE crossings (
	scope VARCHAR NOT NULL, 
	since_s DOUBLE NOT NULL, 
	limit_j DOUBLE NOT NULL, 
	action VARCHAR NOT NULL, 
	used_j DOUBLE NOT NULL, 
	time_s DOUBLE NOT NULL, 
	acted BOOLEAN NOT NULL, 
	PRIMARY KEY (scope, since_s, limit_j, action)
);
CREATE TABLE entries (
	number INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	recorded_s DOUBLE NOT NULL, 
	from_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	concerns_s DOUBLE NOT NULL, 
	namespace VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	note VARCHAR NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	hash VARCHAR NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "entries" VALUES(1,'booked',1793577600.0,1793404800.0,1793491200.0,1793404800.0,'','Node','node-1','DE','{}',36000.0,0.0,0.0,45000.0,0.0,45000.0,0.0,45000.0,0.0,45000.0,0.0,45000.0,'90540ba7bf0b1c8024def65e41ef1cf420130d804450dec86308edd83e56a1b0');
INSERT INTO "entries" VALUES(2,'booked',1793577600.0,1793404800.0,1793491200.0,1793404800.0,'team-a','Job','train','DE','{}',360000.0,0.0,0.0,450000.0,0.0,450000.0,0.0,450000.0,0.0,450000.0,0.0,450000.0,'c96a5d559066f4a138c52d9fded79e477b8664dab8d18606ea34472922e06d59');
INSERT INTO "entries" VALUES(3,'embodied',1793577600.0,1793404800.0,1793491200.0,1793404800.0,'','Node','node-1','DE','{"asset":{"name":"server","source":"a test","lifespan_s":100000000.0,"cpu":{"g":300000.0,"low_g":200000.0,"high_g":900000.0},"memory":{"g":0.0,"low_g":0.0,"high_g":0.0},"gpu":{"g":0.0,"low_g":0.0,"high_g":0.0}},"cpu_s":1800.0,"memory_s":1800.0,"gpu_s":1800.0}',0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,'95c1a70a7a1a08e489ed4f6ac4e3c71961ab4c83a01c8d0b94d1299defad1aa2');
INSERT INTO "entries" VALUES(4,'embodied',1793577600.0,1793404800.0,1793491200.0,1793404800.0,'team-a','Job','train','DE','{"asset":{"name":"server","source":"a test","lifespan_s":100000000.0,"cpu":{"g":300000.0,"low_g":200000.0,"high_g":900000.0},"memory":{"g":0.0,"low_g":0.0,"high_g":0.0},"gpu":{"g":0.0,"low_g":0.0,"high_g":0.0}},"cpu_s":1800.0,"memory_s":1800.0,"gpu_s":1800.0}',0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,'fd3a045cd6892420e2b925920cb936ed4db77852421ff70a2ba08e5f24a07a7a');
INSERT INTO "entries" VALUES(5,'closing',1793577600.0,1790812800.0,1793491200.0,1790812800.0,'','','','','{"month":"2026-10","public_key":"wUtMMWDvlAu9JOgUgSFlGJ7+b64gy7xPE0TA8RDR9Ds=","signature":"WLyVuPSrL3bkfUbyvknOHml5BSZbcHEtCLH9zgnSXHnGnU0TO6MjhiUEe2+YGG83KDRmEpyn0YKD8PBvBpwDDg=="}',0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,'969e51085b847920759f786ae9a8a7ea5fecdb8bbc7fd5536fb962aff581ce18');
CREATE TABLE factors (
	id INTEGER NOT NULL, 
	zone VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	from_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	booked DOUBLE, 
	current DOUBLE, 
	changed_by VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "factors" VALUES(1,'DE','intensity',1793487600.0,1793487900.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(2,'DE','marginal-intensity',1793487600.0,1793491200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(3,'DE','price',1793487600.0,1793487900.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(4,'DE','pue',1793487600.0,1793491200.0,1.25,1.25,'');
INSERT INTO "factors" VALUES(5,'DE','gpu-pue',1793487600.0,1793491200.0,1.3,1.3,'');
INSERT INTO "factors" VALUES(6,'DE','intensity',1793487900.0,1793488200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(7,'DE','price',1793487900.0,1793488200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(8,'DE','intensity',1793488200.0,1793488500.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(9,'DE','price',1793488200.0,1793488500.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(10,'DE','intensity',1793488500.0,1793488800.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(11,'DE','price',1793488500.0,1793488800.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(12,'DE','intensity',1793488800.0,1793489100.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(13,'DE','price',1793488800.0,1793489100.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(14,'DE','intensity',1793489100.0,1793489400.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(15,'DE','price',1793489100.0,1793489400.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(16,'DE','intensity',1793489400.0,1793489700.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(17,'DE','price',1793489400.0,1793489700.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(18,'DE','intensity',1793489700.0,1793490000.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(19,'DE','price',1793489700.0,1793490000.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(20,'DE','intensity',1793490000.0,1793490300.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(21,'DE','price',1793490000.0,1793490300.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(22,'DE','intensity',1793490300.0,1793490600.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(23,'DE','price',1793490300.0,1793490600.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(24,'DE','intensity',1793490600.0,1793490900.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(25,'DE','price',1793490600.0,1793490900.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(26,'DE','intensity',1793490900.0,1793491200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(27,'DE','price',1793490900.0,1793491200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(28,'DE','intensity',1793491200.0,1793491500.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(29,'DE','marginal-intensity',1793491200.0,1793494800.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(30,'DE','price',1793491200.0,1793491500.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(31,'DE','pue',1793491200.0,1793494800.0,1.25,1.25,'');
INSERT INTO "factors" VALUES(32,'DE','gpu-pue',1793491200.0,1793494800.0,1.3,1.3,'');
INSERT INTO "factors" VALUES(33,'DE','intensity',1793491500.0,1793491800.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(34,'DE','price',1793491500.0,1793491800.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(35,'DE','intensity',1793491800.0,1793492100.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(36,'DE','price',1793491800.0,1793492100.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(37,'DE','intensity',1793492100.0,1793492400.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(38,'DE','price',1793492100.0,1793492400.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(39,'DE','intensity',1793492400.0,1793492700.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(40,'DE','price',1793492400.0,1793492700.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(41,'DE','intensity',1793492700.0,1793493000.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(42,'DE','price',1793492700.0,1793493000.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(43,'DE','intensity',1793493000.0,1793493300.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(44,'DE','price',1793493000.0,1793493300.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(45,'DE','intensity',1793493300.0,1793493600.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(46,'DE','price',1793493300.0,1793493600.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(47,'DE','intensity',1793493600.0,1793493900.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(48,'DE','price',1793493600.0,1793493900.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(49,'DE','intensity',1793493900.0,1793494200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(50,'DE','price',1793493900.0,1793494200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(51,'DE','intensity',1793494200.0,1793494500.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(52,'DE','price',1793494200.0,1793494500.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(53,'DE','intensity',1793494500.0,1793494800.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(54,'DE','price',1793494500.0,1793494800.0,NULL,NULL,'');
CREATE TABLE hours (
	pod_id INTEGER NOT NULL, 
	hour INTEGER NOT NULL, 
	from_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY (pod_id, hour)
)
 WITHOUT ROWID

;
INSERT INTO "hours" VALUES(1,498192,1793491200.0,1793494800.0,360000.0,0.0,0.0,450000.0,0.0,450000.0,0.0,450000.0,0.0,450000.0,0.0,450000.0);
INSERT INTO "hours" VALUES(2,498192,1793491200.0,1793494800.0,36000.0,0.0,0.0,45000.0,0.0,45000.0,0.0,45000.0,0.0,45000.0,0.0,45000.0);
CREATE TABLE pods (
	id INTEGER NOT NULL, 
	uid VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	started_s DOUBLE, 
	pue DOUBLE NOT NULL, 
	gpu_pue DOUBLE NOT NULL, 
	held VARCHAR, 
	from_s DOUBLE NOT NULL, 
	sampled_s DOUBLE NOT NULL, 
	cpu_w DOUBLE NOT NULL, 
	mem_w DOUBLE NOT NULL, 
	gpu_w DOUBLE NOT NULL, 
	quality VARCHAR NOT NULL, 
	source VARCHAR NOT NULL, 
	samples INTEGER NOT NULL, 
	completed_s DOUBLE, 
	asset_id INTEGER, 
	cpu_share DOUBLE, 
	memory_share DOUBLE, 
	gpu_share DOUBLE, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (uid)
);
INSERT INTO "pods" VALUES(1,'train-uid','team-a','train','Job','train','node-1','DE',1793487600.0,1.25,1.3,NULL,1793487600.0,1793494800.0,100.0,0.0,0.0,'modelled','cadvisor',4,NULL,1,0.5,0.5,0.5,720000.0,0.0,0.0,900000.0,0.0,900000.0,0.0,900000.0,0.0,900000.0,0.0,900000.0);
INSERT INTO "pods" VALUES(2,'idle:node-uid','','unallocated','Node','node-1','node-1','DE',NULL,1.25,1.3,NULL,1793487600.0,1793494800.0,10.0,0.0,0.0,'modelled','cadvisor',4,NULL,1,1.0,1.0,1.0,72000.0,0.0,0.0,90000.0,0.0,90000.0,0.0,90000.0,0.0,90000.0,0.0,90000.0);
CREATE TABLE postings (
	hour INTEGER NOT NULL, 
	namespace VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	quality VARCHAR NOT NULL, 
	intensity INTEGER NOT NULL, 
	marginal INTEGER NOT NULL, 
	price INTEGER NOT NULL, 
	pue INTEGER NOT NULL, 
	gpu_pue INTEGER NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	PRIMARY KEY (hour, namespace, owner_kind, owner_name, zone, quality, intensity, marginal, price, pue, gpu_pue)
)
 WITHOUT ROWID

;
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',1,2,3,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',6,2,7,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',8,2,9,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',10,2,11,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',12,2,13,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',14,2,15,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',16,2,17,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',18,2,19,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',20,2,21,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',22,2,23,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',24,2,25,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'','Node','node-1','DE','assumed',26,2,27,4,5,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',1,2,3,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',6,2,7,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',8,2,9,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',10,2,11,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',12,2,13,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',14,2,15,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',16,2,17,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',18,2,19,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',20,2,21,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',22,2,23,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',24,2,25,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498191,'team-a','Job','train','DE','assumed',26,2,27,4,5,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',28,29,30,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',33,29,34,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',35,29,36,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',37,29,38,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',39,29,40,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',41,29,42,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',43,29,44,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',45,29,46,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',47,29,48,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',49,29,50,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',51,29,52,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'','Node','node-1','DE','assumed',53,29,54,31,32,3000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',28,29,30,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',33,29,34,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',35,29,36,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',37,29,38,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',39,29,40,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',41,29,42,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',43,29,44,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',45,29,46,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',47,29,48,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',49,29,50,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',51,29,52,31,32,30000.0,0.0,0.0);
INSERT INTO "postings" VALUES(498192,'team-a','Job','train','DE','assumed',53,29,54,31,32,30000.0,0.0,0.0);
CREATE TABLE pue_sources (
	zone VARCHAR NOT NULL, 
	pue DOUBLE NOT NULL, 
	gpu_pue DOUBLE NOT NULL, 
	source VARCHAR NOT NULL, 
	from_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	PRIMARY KEY (zone, pue, gpu_pue, source)
);
INSERT INTO "pue_sources" VALUES('DE',1.25,1.3,'own meters, 2025',1793487600.0,1793489400.0);
INSERT INTO "pue_sources" VALUES('DE',1.25,1.3,'own meters, 2026',1793493000.0,1793494800.0);
CREATE TABLE reservations (
	day INTEGER NOT NULL, 
	namespace VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	asset_id INTEGER NOT NULL, 
	cpu_s DOUBLE NOT NULL, 
	memory_s DOUBLE NOT NULL, 
	gpu_s DOUBLE NOT NULL, 
	PRIMARY KEY (day, namespace, owner_kind, owner_name, zone, asset_id)
)
 WITHOUT ROWID

;
INSERT INTO "reservations" VALUES(20758,'','Node','node-1','DE',1,1800.0,1800.0,1800.0);
INSERT INTO "reservations" VALUES(20758,'team-a','Job','train','DE',1,1800.0,1800.0,1800.0);
CREATE TABLE runs (
	uid VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	started_s DOUBLE NOT NULL, 
	ended_s DOUBLE NOT NULL, 
	ran_s DOUBLE NOT NULL, 
	finished BOOLEAN NOT NULL, 
	PRIMARY KEY (uid)
);
CREATE TABLE samples (
	pod_id INTEGER NOT NULL, 
	time_s DOUBLE NOT NULL, 
	cpu_w DOUBLE NOT NULL, 
	mem_w DOUBLE NOT NULL, 
	gpu_w DOUBLE NOT NULL, 
	PRIMARY KEY (pod_id, time_s)
)
 WITHOUT ROWID

;
INSERT INTO "samples" VALUES(1,1793487600.0,100.0,0.0,0.0);
INSERT INTO "samples" VALUES(1,1793489400.0,100.0,0.0,0.0);
INSERT INTO "samples" VALUES(1,1793493000.0,100.0,0.0,0.0);
INSERT INTO "samples" VALUES(1,1793494800.0,100.0,0.0,0.0);
INSERT INTO "samples" VALUES(2,1793487600.0,10.0,0.0,0.0);
INSERT INTO "samples" VALUES(2,1793489400.0,10.0,0.0,0.0);
INSERT INTO "samples" VALUES(2,1793493000.0,10.0,0.0,0.0);
INSERT INTO "samples" VALUES(2,1793494800.0,10.0,0.0,0.0);
CREATE TABLE savings (
	uid VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	measure VARCHAR NOT NULL, 
	method VARCHAR NOT NULL, 
	completed_s DOUBLE NOT NULL, 
	name VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	amount DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	pods INTEGER NOT NULL, 
	PRIMARY KEY (uid, namespace, measure, method, completed_s)
);
CREATE TABLE signals (
	zone VARCHAR NOT NULL, 
	measure VARCHAR NOT NULL, 
	time_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	value DOUBLE NOT NULL, 
	PRIMARY KEY (zone, measure, time_s)
)
 WITHOUT ROWID

;
INSERT INTO "signals" VALUES('DE','intensity',1749081600.0,1750809600.0,500.0);
INSERT INTO "signals" VALUES('DE','price',1749081600.0,1750809600.0,0.3);
CREATE TABLE state (
	"key" VARCHAR NOT NULL, 
	value VARCHAR NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "state" VALUES('version','3');
INSERT INTO "state" VALUES('began_s','1793487600.0');
INSERT INTO "state" VALUES('folded_s','1793491200.0');
INSERT INTO "state" VALUES('closed_s','1793491200.0');
CREATE TABLE totals (
	namespace VARCHAR NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY (namespace)
);
INSERT INTO "totals" VALUES('',72000.0,0.0,0.0,90000.0,0.0,90000.0,0.0,90000.0,0.0,90000.0,0.0,90000.0);
INSERT INTO "totals" VALUES('team-a',720000.0,0.0,0.0,900000.0,0.0,900000.0,0.0,900000.0,0.0,900000.0,0.0,900000.0);
CREATE TABLE units (
	day INTEGER NOT NULL, 
	namespace VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	unit VARCHAR NOT NULL, 
	source VARCHAR NOT NULL, 
	amount DOUBLE NOT NULL, 
	PRIMARY KEY (day, namespace, owner_kind, owner_name, unit, source)
)
 WITHOUT ROWID

;
CREATE INDEX ix_pods_completed_s ON pods (completed_s);
CREATE INDEX hours_by_hour ON hours (hour);
CREATE INDEX entries_by_time ON entries (from_s);
CREATE INDEX factors_by_time ON factors (zone, kind, from_s);
CREATE INDEX runs_by_workload ON runs (namespace, kind, name, ended_s);
COMMIT;
